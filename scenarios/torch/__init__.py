"""Bugs of torch itself, one module each."""
