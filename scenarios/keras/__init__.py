"""Bugs of keras."""
