"""Bugs of open_clip_torch."""
