"""Whole training steps on several processes: a schedule combined with the other parts of training."""
