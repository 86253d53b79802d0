"""Runs of the contract in pytest, with additions of hooks: one for a target, one per test with parametrize_checks."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal, TypeVar, cast

import pytest

from gradconform import tolerance
from gradconform.contract.plan import Item
from gradconform.devices.choice import DeviceChoice, choose, refuse_crowd
from gradconform.devices.flags import flags_named
from gradconform.devices.prepared import ready
from gradconform.fixtures.stages import ZOO
from gradconform.fixtures.stages.case import StageCase
from gradconform.run.options import RunOptions
from gradconform.run.run import Run
from gradconform.sources.stages.checks import select_checks
from gradconform.target.resolve import registered_targets
from gradconform.user_input.values import PROFILES, SelectionError

T = TypeVar("T")
Kind = Literal["contract", "added"]


@dataclass(frozen=True, slots=True)
class Extensions:
    """The additions of hooks."""

    adapters: Mapping[str, object]
    devices: tuple[str, ...]
    stages: tuple[StageCase, ...]
    tolerances: Mapping[str, float]


_EXTENSIONS = pytest.StashKey[Extensions]()


def extensions(config: pytest.Config) -> Extensions:
    """Return the additions of hooks; the first call runs the hooks and sets the tolerances.

    Raises ``ValueError`` for a used name and for a tolerance that is not a positive number.
    """
    if _EXTENSIONS not in config.stash:
        hook = config.hook
        devices = [name for names in hook.pytest_gradconform_devices(config=config) for name in names]
        tolerances = _united("tolerances", hook.pytest_gradconform_tolerances(config=config), ())
        tolerance.override(tolerances)
        config.stash[_EXTENSIONS] = Extensions(
            adapters=_united("adapters", hook.pytest_gradconform_adapters(config=config), registered_targets()),
            devices=tuple(devices),
            stages=_stages(config),
            tolerances=tolerances,
        )
    return config.stash[_EXTENSIONS]


def _united(what: str, mappings: Iterable[Mapping[str, T]], taken: Container[str]) -> dict[str, T]:
    found: dict[str, T] = {}
    for mapping in mappings:
        twice = sorted(name for name in mapping if name in found or name in taken)
        if twice:
            msg = f"pytest_gradconform_{what} uses a taken name: {', '.join(map(repr, twice))}; choose another name"
            raise ValueError(msg)
        found.update(mapping)
    return found


def _stages(config: pytest.Config) -> tuple[StageCase, ...]:
    found: dict[str, StageCase] = {}
    for case in (case for cases in config.hook.pytest_gradconform_stages(config=config) for case in cases):
        if not isinstance(case, StageCase):
            msg = f"pytest_gradconform_stages: expected gradconform.fixtures.stages.StageCase, got {case!r}"
            raise ValueError(msg)  # noqa: TRY004 (all mistakes in hooks raise one type)
        if case.name in ZOO or case.name in found:
            msg = f"pytest_gradconform_stages: the stage name {case.name!r} is taken; choose another name"
            raise ValueError(msg)
        found[case.name] = case
    return tuple(found.values())


def added_items(stages: Sequence[StageCase], contract: Sequence[Item], options: RunOptions) -> tuple[Item, ...]:
    """Return the items on ``stages``, for each device and dtype of ``contract``, selected by profile and globs."""
    cells = dict.fromkeys((item.device, item.dtype) for item in contract)
    profiles = PROFILES[: PROFILES.index(options.profile) + 1]
    added = [
        check
        for case in stages
        for check in select_checks(case, version=options.contract).checks
        if check.profile in profiles and _wanted(check.id, options)
    ]
    return tuple(Item(check, device, dtype) for device, dtype in cells for check in added)


def _wanted(check: str, options: RunOptions) -> bool:
    included = not options.checks or any(fnmatchcase(check, pattern) for pattern in options.checks)
    return included and not any(fnmatchcase(check, pattern) for pattern in options.exclude_checks)


@dataclass
class ContractRun:
    """One run, its items that are tests, and the empty report that it starts with.

    ``kind`` is ``added`` for the checks on a hook's stages, which are not part of the contract. ``judged`` are the
    positions of the items that this process has judged.
    """

    key: str
    kind: Kind
    run: Run
    items: tuple[Item, ...]
    extensions: Extensions
    judged: list[int] = field(default_factory=list)

    @cached_property
    def header(self) -> dict[str, Any]:
        """The empty report of the run, in JSON types for any process."""
        start = dict(self.run.header().report)
        if self.extensions.tolerances:
            start["environment"] = {**start["environment"], "tolerances_changed": dict(self.extensions.tolerances)}
        if self.kind == "added":
            start |= {"manifest": len(self.items), "planned": len(self.items)}
        cells = sorted({(item.device, item.dtype) for item in self.items})
        header = {"key": self.key, "kind": self.kind, "cells": cells, "report": start}
        return cast("dict[str, Any]", plain(header))


def make_runs(config: pytest.Config, options: RunOptions, key: str) -> list[ContractRun]:
    """Return the run of the contract, and the run of added stages if a hook adds some.

    Raises ``ValueError`` with the kit's message for a target, device, dtype, profile or pattern that does not exist.
    """
    known = extensions(config)
    run = Run(options, adapters=known.adapters, choice=choice_of(config, options))
    runs = [ContractRun(key, "contract", run, run.plan.items, known)]
    added = added_items(known.stages, run.plan.items, options)
    if options.shard is not None:
        added = tuple(added[position] for position in options.shard.positions(added))
    if added:
        runs.append(ContractRun(f"{key} (added stages)", "added", run, added, known))
    return runs


def plain(values: object) -> object:
    """Return ``values`` in JSON types: pytest-xdist sends no subclass of str, such as torch's version."""
    return json.loads(json.dumps(values))


_INPUT = "gradconform_choices"
_CHOICES = pytest.StashKey[dict[str, DeviceChoice]]()


def choice_of(config: pytest.Config, options: RunOptions) -> DeviceChoice:
    """Return the devices and dtypes of ``options``, ready for use in this process.

    A worker of pytest-xdist uses the controller's results. Raises ``ValueError`` with the kit's message for a device or
    dtype that cannot be used.
    """
    known = extensions(config)  # a hook may have to make a device usable first
    choices = config.stash.setdefault(_CHOICES, _handed_down(config))
    key = repr((options.device, options.dtype, options.device_plugins))
    if key not in choices:
        choices[key] = _choose(options, known.devices)
        refuse_crowd(choices[key], _workers(config))
    if not _only_controls(config):
        ready(choices[key], flags_named(options.flags))
    return choices[key]


def _choose(options: RunOptions, offered: tuple[str, ...]) -> DeviceChoice:
    here = {name.partition(":")[0] for name in offered} - {"cpu"}
    try:
        return choose(
            options.device, options.dtype, plugins=options.device_plugins, here=here, flags=flags_named(options.flags)
        )
    except SelectionError as error:
        if not offered:
            raise
        msg = f"{error}; pytest_gradconform_devices added: {', '.join(offered)}"
        raise type(error)(msg) from error


def _handed_down(config: pytest.Config) -> dict[str, DeviceChoice]:
    found: dict[str, Any] = getattr(config, "workerinput", {}).get(_INPUT, {})
    return {key: DeviceChoice.from_dict(values) for key, values in found.items()}


def hand_down(config: pytest.Config, worker: Any) -> None:
    """Pass the probe results to a worker of pytest-xdist."""
    choices = config.stash.get(_CHOICES, {})
    worker.workerinput[_INPUT] = {key: choice.to_dict() for key, choice in choices.items()}


def _workers(config: pytest.Config) -> int:
    """Return how many processes will run checks."""
    workers = getattr(config, "workerinput", {}).get("workercount")
    return int(workers or len(getattr(config.option, "tx", None) or ()) or 1)


def _only_controls(config: pytest.Config) -> bool:
    """Return whether workers run the checks: this process then uses no device, which may allow only one."""
    return not hasattr(config, "workerinput") and bool(getattr(config.option, "tx", None))
