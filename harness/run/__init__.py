"""Runs scenarios: the config, one trial, its verdict, many runs, here or on Slurm."""
