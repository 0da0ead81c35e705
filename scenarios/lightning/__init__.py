"""Bugs of PyTorch Lightning."""
