"""Bugs of pytorch-ignite."""
