"""Runs checks in worker processes: what ends one of them is the result of one check, and the run goes on."""
