"""Bugs of litdata."""
