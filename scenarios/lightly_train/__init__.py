"""Bugs of lightly-train."""
