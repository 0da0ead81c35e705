"""One run: its trials, what their ranks record, and the verdict."""
