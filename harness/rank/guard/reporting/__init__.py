"""What rank 0 says of a run, and what it writes."""
