"""Devices without hardware, such as a simulated accelerator, and real devices that need code."""
