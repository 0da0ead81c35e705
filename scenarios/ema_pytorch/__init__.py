"""Bugs of ema-pytorch."""
