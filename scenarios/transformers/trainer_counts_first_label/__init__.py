"""The Trainer divides LLaMA's loss by one label too many in each row."""
