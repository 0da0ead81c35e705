"""What a rank posts to rank 0, how, and how often."""
