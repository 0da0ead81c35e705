"""The site: what was found, as pages; they open from a file, and ask no network."""
