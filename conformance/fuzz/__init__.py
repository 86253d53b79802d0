"""Fuzzing: random trials on one target until its budget is spent; each defect is reduced and reported once."""
