"""The pytest plugin, ``unittest`` classes, adapters and runtimes of real implementations, and devices."""
