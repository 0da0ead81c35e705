"""What the user has chosen: Hydra's files and the command line, as a typed RunConfig."""
