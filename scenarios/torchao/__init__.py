"""Bugs of torchao."""
