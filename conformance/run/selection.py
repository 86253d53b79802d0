"""Selects the checks of a run, from the contract and from the sources that its options use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol, cast

import torch

from gradconform.contract import checks_of
from gradconform.contract.check import Check
from gradconform.user_input.values import SelectionError

from .judging import Engine, one_thread
from .options import RunOptions
from .sources import FOLDER, SOURCES


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """The checks of a source in one run, and the report's lines on them before any check runs.

    ``measured`` has the measurements that the plan depends on, as JSON values: other processes of the run get them.
    """

    checks: Sequence[Check]
    lines: tuple[str, ...] = ()
    measured: Mapping[str, Any] = field(default_factory=dict)


class Checks(Protocol):
    """The module ``checks`` of a source."""

    def select(self, options: RunOptions, measured: Mapping[str, Any] | None) -> Selected:
        """Return the checks that a run's options select.

        ``measured`` has the measurements of another process of the same run, which are not repeated; None if this is
        the first one. Raises ``ValueError`` for an option that selects nothing.
        """

    def engine(self, options: RunOptions, device: torch.device, dtype: torch.dtype) -> Engine:
        """Return the judge of those checks that judge something else than the target (``Check.judges``).

        A source whose checks all judge the target has no such function.
        """


def checks_module(source: str) -> Checks:
    """Return the module with the checks of a source; the first call imports it."""
    return cast("Checks", import_module(f"{FOLDER}.{source}.checks"))


def _used(options: RunOptions) -> list[str]:
    """Return the sources of which an option differs from its default, in order."""
    return [
        name
        for name, source in SOURCES.items()
        if any(getattr(options, one.name) != one.default for one in source.options)
    ]


@dataclass(frozen=True, slots=True)
class Selection:
    """The checks of a run by id, the source of each that is not the contract's, the report's lines, and measurements.

    ``measured`` has the measurements for the plan as JSON values.
    """

    checks: Mapping[str, Check]
    sources: Mapping[str, str]
    lines: tuple[str, ...]
    measured: Mapping[str, Any]


def selection_of(options: RunOptions, measured: Mapping[str, Any] | None) -> Selection:
    """Return the checks of the contract or of the sources that the options use, or of both.

    ``measured`` has the measurements of another process of the run.
    """
    with one_thread():  # as when they run; on a busy machine, several threads wait for each other
        selected = {name: checks_module(name).select(options, measured) for name in _used(options)}
    own = {check.id: check for one in selected.values() for check in one.checks}
    lines = tuple(line for one in selected.values() for line in one.lines)
    replaced = options.replaces_the_contract
    if replaced and not own:
        msg = f"no selected part can be judged: {'; '.join(lines)}"
        raise SelectionError(msg)
    contract = checks_of(options.contract) if options.with_contract or not replaced else {}
    return Selection(
        {**contract, **own},
        {check.id: name for name, one in selected.items() for check in one.checks},
        lines,
        {key: value for one in selected.values() for key, value in one.measured.items()},
    )
