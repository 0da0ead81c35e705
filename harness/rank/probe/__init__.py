"""What runs in a process of the user's script: the rank, and what it records of each step."""
