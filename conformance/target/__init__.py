"""Targets: what a user names, turned into an adapter."""
