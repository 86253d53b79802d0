"""Devices that need no hardware: a simulated accelerator, its smoke test in Python alone, and torch's lazy device."""
