"""Stages that a user names, found and built, with the recipes of what they are fed."""
