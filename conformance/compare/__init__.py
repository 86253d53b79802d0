"""Reports beside each other: the shards of one run put together, and a new run against the one before."""
