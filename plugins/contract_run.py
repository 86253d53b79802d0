"""Runs of the contract within pytest: one for ``--gradconform TARGET``, one per test with ``parametrize_checks``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, cast

import pytest

from gradconform.devices import Choice
from gradconform.plan import Item
from gradconform.plugins.added_stages import added_items
from gradconform.plugins.bound_check import plain
from gradconform.plugins.chosen_devices import choice_of
from gradconform.plugins.extensions import Extensions, extensions
from gradconform.plugins.options import Options
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
        start = dict(self.session.header().report)
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
    session = make_session(options, target, known, choice_of(config, options))
    runs = [ContractRun(key, "contract", session, session.plan.items, known)]
    added = added_items(known.stages, session.plan.items, options)
    if options.shard is not None:
        added = tuple(added[position] for position in options.shard.positions(added))
    if added:
        runs.append(ContractRun(f"{key} (added stages)", "added", session, added, known))
    return runs


def make_session(options: Options, target: object, known: Extensions, choice: Choice) -> Session:
    """Return the session of ``target`` on the devices and dtypes of ``choice``; ``options`` say the rest."""
    return Session(
        resolve(target, extra=known.adapters),
        choice=choice,
        flags=options.flag,
        profile=options.profile,
        checks=options.checks or None,
        exclude=options.exclude_checks,
        seed=options.seed,
        strict=options.strict,
        require_device_execution=options.require_device_execution,
        shard=options.shard,
        waivers=options.waivers,
    )


def named_items(runs: Sequence[ContractRun]) -> Mapping[str, tuple[ContractRun, int]]:
    """Return every item of ``runs`` by name: its run and its position in it."""
    return {item.name: (run, position) for run in runs for position, item in enumerate(run.items)}
