"""The site and the pages of the documentation."""
