"""Targets: the names that a user gives, and the adapters that they resolve to."""
