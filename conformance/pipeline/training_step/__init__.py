"""Whole training steps on several processes: compositions of a schedule with all that surrounds it in training."""
