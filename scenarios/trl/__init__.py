"""Bugs of trl."""
