"""Every causal language model of transformers, small: which are asked what, and their answers."""
