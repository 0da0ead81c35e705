"""Bugs of megatron-core, one module each."""
