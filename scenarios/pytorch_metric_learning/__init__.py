"""Bugs of pytorch-metric-learning."""
