"""Bugs of lhotse."""
