"""A user's own training: probe runs its script, guard watches its run, models tests its model."""
