"""Upstream's code: pinned, installed, edited, and made to run here."""
