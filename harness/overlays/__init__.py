"""Folders with the code of releases: built, cached, edited, compared."""
