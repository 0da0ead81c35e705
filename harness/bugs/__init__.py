"""What a bug is, as scenarios describe it, and what its recorded runs show."""
