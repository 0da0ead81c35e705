"""The Trainer multiplies the auxiliary loss of a mixture of experts by ranks and micro-batches."""
