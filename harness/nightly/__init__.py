"""Nights: what upstream released, what was asked of it, and what changed."""
