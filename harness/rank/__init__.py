"""Everything that runs inside a rank or a worker: the standard library, numpy and torch only."""
