"""What hooks add to a run: adapters, devices, stages and tolerances, asked for once per process."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import pytest

from gradconform import tolerance
from gradconform.fixtures.stages import ZOO
from gradconform.fixtures.stages.case import StageCase
from gradconform.targets import registered_targets

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Extensions:
    """What hooks have added."""

    adapters: Mapping[str, object]
    devices: tuple[str, ...]
    stages: tuple[StageCase, ...]
    tolerances: Mapping[str, float]


_KEY = pytest.StashKey[Extensions]()


def extensions(config: pytest.Config) -> Extensions:
    """Return what the hooks add; the first call asks them and sets the tolerances.

    Raises ``ValueError`` for a name that is taken and for a tolerance that is no positive number.
    """
    if _KEY not in config.stash:
        hook = config.hook
        devices = [name for names in hook.pytest_gradconform_devices(config=config) for name in names]
        tolerances = _united("tolerances", hook.pytest_gradconform_tolerances(config=config), ())
        tolerance.override(tolerances)
        config.stash[_KEY] = Extensions(
            adapters=_united("adapters", hook.pytest_gradconform_adapters(config=config), registered_targets()),
            devices=tuple(devices),
            stages=_stages(config),
            tolerances=tolerances,
        )
    return config.stash[_KEY]


def _united(what: str, mappings: Iterable[Mapping[str, T]], taken: Container[str]) -> dict[str, T]:
    found: dict[str, T] = {}
    for mapping in mappings:
        twice = sorted(name for name in mapping if name in found or name in taken)
        if twice:
            msg = f"pytest_gradconform_{what} names {', '.join(map(repr, twice))}, which is taken; choose another name"
            raise ValueError(msg)
        found.update(mapping)
    return found


def _stages(config: pytest.Config) -> tuple[StageCase, ...]:
    found: dict[str, StageCase] = {}
    for case in (case for cases in config.hook.pytest_gradconform_stages(config=config) for case in cases):
        if not isinstance(case, StageCase):
            msg = f"pytest_gradconform_stages returned {case!r}; expected gradconform.fixtures.stages.StageCase"
            raise ValueError(msg)  # noqa: TRY004 (all that hooks do wrong is told by one type)
        if case.name in ZOO or case.name in found:
            msg = f"pytest_gradconform_stages adds a stage {case.name!r}, and that name is taken; choose another name"
            raise ValueError(msg)
        found[case.name] = case
    return tuple(found.values())
