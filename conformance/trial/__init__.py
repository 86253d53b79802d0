"""Trials: programs, the stages that run them, their inputs, and random trials."""
