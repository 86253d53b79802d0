"""Bundles: the report of a run and all it rests on in one file, whether such a file holds, and who has signed it."""
