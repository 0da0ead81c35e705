"""Asks small copies of all causal language models of transformers, and keeps their answers."""
