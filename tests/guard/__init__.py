"""Tests of guard: its checks, with made posts and with real trainings."""
