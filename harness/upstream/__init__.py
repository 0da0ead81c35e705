"""Other people's code: pinned, edited, made to run here."""
