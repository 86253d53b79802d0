"""A single check: run again, or written as one Python file that needs only torch and the implementation."""
