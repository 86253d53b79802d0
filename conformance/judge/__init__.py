"""The judges: functions that read evidence and yield findings; a check without findings passes."""

from .finding import Finding
from .gradients import gradients
from .whole import whole

__all__ = ["Finding", "gradients", "whole"]
