"""Bugs of transformers, one module each."""
