"""Bundles: a run's report and its evidence in one file, the verification of such a file, and its signer."""
