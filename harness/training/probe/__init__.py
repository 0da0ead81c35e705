"""Runs a user's own training script in several layouts, and compares what the layouts do."""
