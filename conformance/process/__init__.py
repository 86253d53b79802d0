"""A process of the kit: how it is started, spoken to, watched and ended. It knows nothing of runs."""
