"""Many runs, and what they say together."""
