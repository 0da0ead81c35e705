"""Nightlies: find new upstream releases, test them, and report what changed."""
