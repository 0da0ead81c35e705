"""Every causal language model of transformers, small, and whether its features are right."""
