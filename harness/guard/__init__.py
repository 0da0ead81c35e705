"""The command's side of guard: what is injected into a training, and which known bugs it has."""
