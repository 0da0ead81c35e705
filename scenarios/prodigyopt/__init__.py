"""Bugs of prodigyopt."""
