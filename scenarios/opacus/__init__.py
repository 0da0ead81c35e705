"""Bugs of Opacus."""
