"""The judges: each says what is wrong in a step, by the posts of all its ranks."""
