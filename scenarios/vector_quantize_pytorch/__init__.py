"""Bugs of vector-quantize-pytorch."""
