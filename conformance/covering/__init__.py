"""Covering arrays: dimensions, their values, and rows with every possible pair of values."""
