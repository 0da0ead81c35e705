"""Bugs of schnetpack."""
