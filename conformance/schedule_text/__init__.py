"""Schedules as text, without processes: what a runtime reads, validates, places, merges and lowers, judged."""
