"""Check runs in worker processes: a crash of one becomes the result of one check, and the run continues."""
