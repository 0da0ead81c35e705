"""Which rows a rank reads: loaders, samplers, workers and epochs."""
