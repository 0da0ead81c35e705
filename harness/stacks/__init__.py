"""Which releases an environment has."""
