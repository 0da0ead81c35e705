"""Bugs of accelerate, one module each."""
