"""Bugs of liger-kernel."""
