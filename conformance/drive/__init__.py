"""Driving: one way through a program for every adapter, and all that it shows."""
