"""Differences between torch releases: names that no release promises, by subject, and the tested releases.

The kit looks for a name and never decides by a version: if it is missing, the code that needs it is unavailable, with
the reason.
"""
