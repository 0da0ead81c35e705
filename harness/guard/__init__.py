"""The command's side of guard: what is injected into a training, and the known bugs it looks for."""
