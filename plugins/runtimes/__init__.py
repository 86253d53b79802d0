"""The runtimes in the kit: whole training steps of real projects, each used as its documentation describes."""
