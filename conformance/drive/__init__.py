"""The driver: runs a program on any adapter in one way, and records all observations."""
