"""Bugs of torchdata."""
