"""Judges read evidence and yield findings; a check that finds nothing passes."""

from gradconform.judge.finding import Finding
from gradconform.judge.gradients import gradients

__all__ = ["Finding", "gradients"]
