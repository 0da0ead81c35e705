"""Bugs of timm."""
