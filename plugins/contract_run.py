"""Runs of the contract within pytest: one for ``--gradconform TARGET``, one per test with ``parametrize_checks``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, cast

import pytest

from gradconform.plan import Item
from gradconform.plugins.added_stages import added_items
from gradconform.plugins.bound_check import plain
from gradconform.plugins.extensions import Extensions, extensions, refuse_unusable
from gradconform.plugins.options import Options
from gradconform.results import Report
from gradconform.session import Session
from gradconform.targets import resolve

Kind = Literal["contract", "added"]


@dataclass
class ContractRun:
    """One run: a session, the items of it that are tests, and what a report of it starts from.

    ``kind`` is ``added`` for the checks on stages that a hook adds: they are no part of the contract.
    """

    key: str
    kind: Kind
    session: Session
    items: tuple[Item, ...]
    extensions: Extensions

    @cached_property
    def header(self) -> dict[str, Any]:
        """The empty report of the run, in values that any process can read."""
        empty = self.session.empty_report()
        start = {f.name: getattr(empty, f.name) for f in fields(Report) if f.init and f.name != "results"}
        if self.extensions.tolerances:
            start["environment"] = {**start["environment"], "tolerances_changed": dict(self.extensions.tolerances)}
        if self.kind == "added":
            start |= {"manifest": len(self.items), "planned": len(self.items)}
        cells = sorted({(item.device, item.dtype) for item in self.items})
        header = {"key": self.key, "kind": self.kind, "cells": cells, "report": start}
        return cast("dict[str, Any]", plain(header))


def make_runs(config: pytest.Config, options: Options, key: str, *, target: object) -> list[ContractRun]:
    """Return the run of the contract, and the run of the added stages where a hook adds some.

    Raises ``ValueError`` with the kit's message for a target, device, dtype, profile or pattern that does not exist.
    """
    known = extensions(config)
    session = make_session(options, target, known)
    runs = [ContractRun(key, "contract", session, session.plan.items, known)]
    added = added_items(known.stages, session.plan.items, options)
    if added:
        runs.append(ContractRun(f"{key} (added stages)", "added", session, added, known))
    return runs


def make_session(options: Options, target: object, known: Extensions) -> Session:
    """Return the session of ``target``; ``options`` say the rest."""
    refuse_unusable(options.device, options.dtype, known)
    return Session(
        resolve(target, extra=known.adapters),
        device=options.device,
        dtype=options.dtype,
        profile=options.profile,
        checks=options.checks or None,
        exclude=options.exclude_checks,
        seed=options.seed,
        strict=options.strict,
    )


def named_items(runs: Sequence[ContractRun]) -> Mapping[str, tuple[ContractRun, int]]:
    """Return every item of ``runs`` by name: its run and its position in it."""
    return {item.name: (run, position) for run in runs for position, item in enumerate(run.items)}
