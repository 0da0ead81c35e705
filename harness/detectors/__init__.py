"""Checks for any training loop. They need torch, and nothing of the harness."""
