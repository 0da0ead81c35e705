"""What a rank sees of a step: losses, gradients, updates and weights, in samples."""
