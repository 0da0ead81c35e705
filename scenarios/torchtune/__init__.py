"""Bugs of torchtune."""
