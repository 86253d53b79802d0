"""Gradient edges: what a backward starts at where its output was let go of."""

from __future__ import annotations

from .names import Name

#: Without it the node of a custom Function dies with its output, whoever holds its edge. Not in the oldest releases.
EDGE = Name("torch.autograd.graph:GradientEdge", ("ownership_token",), "keeps the graph of a released output alive")
