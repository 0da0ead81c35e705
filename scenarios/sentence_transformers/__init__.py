"""Bugs of sentence-transformers."""
