"""The Trainer takes the mean of micro-batches' means, whatever their numbers of tokens."""
