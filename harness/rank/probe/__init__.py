"""Runs in each rank of the user's script, and records its steps."""
