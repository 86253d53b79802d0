"""Adapters for real implementations, one module each; registered in the entry-point group ``gradconform.adapters``."""
