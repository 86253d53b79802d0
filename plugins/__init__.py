"""The pytest plugin, and adapters for real implementations."""
