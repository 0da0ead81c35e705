"""Bugs of pytorch-optimizer."""
