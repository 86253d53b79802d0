"""Planned space: one check per row of a covering array over the dimensions of a trial.

[The page of the space](space.md) explains every value; a row lists its values that are not the default.
"""
