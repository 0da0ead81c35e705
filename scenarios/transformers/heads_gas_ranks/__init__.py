"""With the heads of BERT and others, the Trainer's gradient is too large."""
