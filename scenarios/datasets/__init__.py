"""Bugs of datasets, one module each."""
