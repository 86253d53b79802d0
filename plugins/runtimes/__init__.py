"""Runtimes that ship: whole training steps of real projects, each used as its own documentation uses it."""
