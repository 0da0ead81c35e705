"""Bugs of peft."""
