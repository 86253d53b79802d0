"""Judges read evidence and yield findings; a check that finds nothing passes."""

from gradconform.judge.finding import Finding
from gradconform.judge.gradients import gradients
from gradconform.judge.whole import whole

__all__ = ["Finding", "gradients", "whole"]
