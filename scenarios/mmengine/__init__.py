"""Bugs of mmengine."""
