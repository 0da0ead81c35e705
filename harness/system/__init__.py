"""The ground: files, text, the machine, errors."""
