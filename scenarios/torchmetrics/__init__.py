"""Bugs of torchmetrics."""
