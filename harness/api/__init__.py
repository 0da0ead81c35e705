"""All that a scenario imports. Standard library only."""
