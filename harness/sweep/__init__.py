"""Many runs, and their results together."""
