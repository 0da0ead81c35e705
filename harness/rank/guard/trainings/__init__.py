"""The optimizers of this process, each as a training: what it trains, and its checked steps."""
