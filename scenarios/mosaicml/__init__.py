"""Bugs of Composer."""
