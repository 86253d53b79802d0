"""Finds and builds stages that a user names, with the recipes of their arguments."""
