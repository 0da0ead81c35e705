"""Bugs of mosaicml-streaming."""
