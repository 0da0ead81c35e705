"""Bugs of heavyball."""
