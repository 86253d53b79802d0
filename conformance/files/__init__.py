"""Files: those that a user names, those of the kit itself, and the records of a run."""
