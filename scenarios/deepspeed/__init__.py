"""Bugs of DeepSpeed, one module each."""
