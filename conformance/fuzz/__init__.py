"""Fuzzing: random trials against one target until its budget is spent, each defect found shrunk and told once."""
