"""Bugs of flash-linear-attention, whose kernels are in its package fla-core."""
