"""Judges read evidence and yield findings; a check that finds nothing passes."""

from .finding import Finding
from .gradients import gradients
from .whole import whole

__all__ = ["Finding", "gradients", "whole"]
