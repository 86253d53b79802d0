"""The judges: functions that read evidence and yield findings; a check without findings passes."""

from .all_requirements import all_requirements
from .finding import Finding
from .gradients import gradients

__all__ = ["Finding", "all_requirements", "gradients"]
