"""The relations that must hold between the layouts of a script, and how they are judged."""
