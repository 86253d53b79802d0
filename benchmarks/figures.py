"""Measured figures with their goals, and what they were measured on."""

from __future__ import annotations

import datetime as dt
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version

#: A user's, for a command that is timed: Python keeps the bytecode of the kit's modules, as pip makes that of torch's.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity; ``value`` and ``goal`` are as they are to be read, ``by`` is the script."""

    what: str
    value: str
    goal: str
    by: str

    def __str__(self) -> str:
        """Return the figure as a line."""
        return f"{self.what}: {self.value}; goal {self.goal}"


def table(figures: Iterable[Figure]) -> list[str]:
    """Return figures as a table in Markdown."""
    rows = [f"| {figure.what} | {figure.value} | {figure.goal} | `{figure.by}` |" for figure in figures]
    return ["| | measured | goal | by |", "|---|---:|---:|---|", *rows]


def measured(command: str) -> str:
    """Return the sentence that says when, with what and on which machine ``command`` measured."""
    today = dt.datetime.now(tz=dt.timezone.utc).date()
    cores = os.cpu_count() or 1
    machine = f"{cores} {'core' if cores == 1 else 'cores'} of a CPU ({platform.machine()}, {platform.system()})"
    return f"Measured on {today} with torch {version('torch')} on {machine} by `{command}`."
