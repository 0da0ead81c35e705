"""Bugs of webdataset."""
