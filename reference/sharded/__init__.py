"""Right sharded stages in several styles, and :mod:`.faults`, right ones with one change each."""
