"""Whole pipelines: processes that run torch's own schedule runtime with the implementation under test inside.

One process per rank, started by torch's launcher. Each rank compares its stages with one plain backward of the whole
model, which it computes by itself.
"""
