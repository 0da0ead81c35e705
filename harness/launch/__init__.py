"""Processes: torchrun, servers that ranks are forked from, nodes."""
