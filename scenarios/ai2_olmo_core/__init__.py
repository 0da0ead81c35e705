"""Bugs of OLMo-core."""
