"""What is recorded of each step of a probed training: rows, losses, gradients, weights."""
