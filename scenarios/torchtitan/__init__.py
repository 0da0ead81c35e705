"""Bugs of torchtitan."""
