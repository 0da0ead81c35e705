"""With label smoothing, gradient accumulation multiplies the Trainer's gradient."""
