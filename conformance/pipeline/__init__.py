"""Whole pipelines: processes that run torch's own schedule runtime with the implementation under test inside.

Torch's launcher starts one process per rank. Each rank compares its stages with one plain backward of the whole model,
which it computes alone.
"""
