"""The site and the pages of the documentation; the nightly that compares releases."""
