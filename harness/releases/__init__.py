"""Which releases there are, and the read-only folders with their code, built and cached."""
