"""Bugs of rsl-rl-lib."""
