"""Devices and dtypes that a user names. Importing this package does not import torch."""

from .registry import register_device

__all__ = ["register_device"]
