"""The command's side of guard: what is injected into a training, and what is read of it."""
