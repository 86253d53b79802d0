"""Covering arrays: dimensions and their values, and rows in which every pair of values stands that can."""
