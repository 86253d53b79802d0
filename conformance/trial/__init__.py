"""Trials: programs, the stages that run them, what they are fed, and random ones."""
