"""Bugs of diffusers."""
