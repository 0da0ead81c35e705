"""Bugs of lightly."""
