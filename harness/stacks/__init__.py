"""The releases that an environment has: read from an interpreter, or from files."""
