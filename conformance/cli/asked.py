"""What a run is asked for: the options of a session as JSON values, from the arguments or from a run to go on with."""

from __future__ import annotations

import argparse
from typing import Any

from gradconform.cli.waivers import waivers_named
from gradconform.defaults import DEFAULT_SEED
from gradconform.records import Header, RecordedRun, RecordsError

_DEFAULTS: dict[str, Any] = {
    "device": ["cpu"],
    "dtype": ["float32"],
    "profile": "standard",
    "checks": None,
    "exclude": [],
    "seed": DEFAULT_SEED,
    "strict": False,
    "probe": False,
    "require_device_execution": None,
    "schedule": [],
    "shard": None,
    "device_plugins": [],
    "flags": [],
}

#: Where an argument is not written as two dashes and the option's name.
_WRITTEN = {
    "target": "TARGET",
    "exclude": "--exclude-checks",
    "require_device_execution": "--require-device-execution",
    "device_plugins": "--device-plugin",
    "flags": "--flag",
}


def options_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of the session that the arguments ask for.

    Raises :class:`~gradconform.waivers.file.WaiverError` for a waiver file that cannot be read.
    """
    return {**_DEFAULTS, **_given(arguments), "waivers": waivers_named(arguments)}


def resumed_options(arguments: argparse.Namespace, found: RecordedRun) -> dict[str, Any]:
    """Return the options of a run to go on with; what is given beside it has to say the same.

    Raises :class:`~gradconform.records.RecordsError` that names what differs.
    """
    recorded = found.header.options
    if not recorded:
        msg = f"{str(found.path)!r} was not written by a command that can be repeated, so it cannot be gone on with"
        raise RecordsError(msg)
    for name, value in _given(arguments).items():
        if recorded.get(name) != value:
            written = _WRITTEN.get(name, f"--{name}")
            both = f"{recorded.get(name)!r} in the file and {value!r} here"
            msg = f"--resume {found.path}: {written} is {both}; leave it out, or begin a run of its own"
            raise RecordsError(msg)
    return dict(recorded)


def refuse_another_run(found: RecordedRun, header: Header) -> None:
    """Raise :class:`~gradconform.records.RecordsError` where ``header`` is not that of the run to go on with."""
    before, now = (_flat("", {**one.report, "checks": len(one.places)}) for one in (found.header, header))
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    told = [f"{name} is {before.get(name)!r} in the file and {now.get(name)!r} here" for name in names]
    if not told and found.header.places != header.places:
        told = ["the checks are not the same"]
    if told:
        msg = f"--resume {found.path}: this would be another run: {'; '.join(told)}. Begin it anew, with another file"
        raise RecordsError(msg)


def _given(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options that the arguments name."""
    found = {
        "target": arguments.target,
        "device": _once(arguments.device),
        "dtype": _once(arguments.dtype),
        "profile": arguments.profile,
        "checks": arguments.checks,
        "exclude": arguments.exclude_checks,
        "seed": arguments.seed,
        "strict": arguments.strict or None,
        "probe": arguments.probe or None,
        "require_device_execution": arguments.require_device_execution,
        "schedule": arguments.schedule,
        "shard": None if arguments.shard is None else str(arguments.shard),
        "waivers": arguments.waivers,
        "device_plugins": _once(arguments.device_plugin),
        "flags": arguments.flag,
    }
    none = {"waivers": None} if arguments.no_waivers else {}
    return {**{name: value for name, value in found.items() if value is not None}, **none}


def _once(names: list[str] | None) -> list[str] | None:
    """Return each name once, in the order given: one named twice would be run twice."""
    return None if names is None else list(dict.fromkeys(names))


def _flat(name: str, value: Any) -> dict[str, Any]:
    """Return the leaves of nested mappings by dotted name."""
    if not isinstance(value, dict):
        return {name: value}
    return {
        inner: leaf for key, part in value.items() for inner, leaf in _flat(f"{name}.{key}".strip("."), part).items()
    }
