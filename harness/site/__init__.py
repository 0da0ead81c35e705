"""The site: what was found, as pages that people look at; it opens from a file, without a network."""
