"""Devices and dtypes that a user names. Importing it imports no torch."""

from .registry import register_device

__all__ = ["register_device"]
