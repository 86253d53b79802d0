"""Findings: one thing that was seen and must not be, with its numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from gradconform.results import finite

Kind = Literal[
    "mismatch", "nonfinite", "missing", "unexpected", "shape", "dtype", "device", "layout",
    "error", "no_error", "changed", "shared", "alive", "hooks", "not_repeatable",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference from plain autograd.

    ``where`` names the tensor by path (``layers.0.weight``, ``input 1``); ``action`` is the first wrong action;
    ``error`` and ``bound`` are absolute, in the unit of the gradient; ``headroom`` is their ratio. ``cause`` is what
    the diagnosis found, if anything.
    """

    kind: Kind
    where: str
    action: str
    text: str
    error: float | None = None
    bound: float | None = None
    headroom: float | None = None
    cause: str | None = None

    def __str__(self) -> str:
        """Return one line of a message."""
        place = f"{self.where}, after {self.action}" if self.action else self.where
        return f"{place}: {self.text}{f'; likely cause: {self.cause}' if self.cause else ''}"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values, with numbers that JSON knows."""
        values = asdict(self)
        return {**values, **{name: finite(values[name]) for name in ("error", "bound", "headroom")}}
