"""A run: its options, its runner per device and dtype, and its records."""
