"""The Trainer divides the loss of GPT-2 by one label too many in each row."""
