"""Sharded stages of real implementations, for ``gradconform sharded gradconform.plugins.sharded.MODULE:STAGE``."""
