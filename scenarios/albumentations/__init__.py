"""Bugs of albumentations."""
