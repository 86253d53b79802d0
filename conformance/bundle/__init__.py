"""Bundles: the report of a run and all it rests on in one file, and whether such a file holds."""
