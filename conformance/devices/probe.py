"""What is found out about devices, in processes of their own with a time limit. Nothing here imports torch.

Each question is told before it is asked, so that the one that kills the process is known. The questions themselves,
and the process that asks them, are :mod:`gradconform.devices.questions`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any

from gradconform.naming import SelectionError
from gradconform.process.orphans import Orphans
from gradconform.process.waits import waiting
from gradconform.process.worker import Exit, Worker
from gradconform.records import as_json, tupled

from .names import DeviceName
from .registry import registered_entries

#: How long one process may take, in seconds: a first start of a driver, or a first build of a backend, takes its time.
TIME_LIMIT = 180.0
TIME_LIMIT_VARIABLE = "GRADCONFORM_PROBE_SECONDS"

#: How many questions of one type of device may end the process that asks them, before that is all that is said of it.
_LIVES = 8


class WrongAnswerError(Exception):
    """The device did what it was asked, and the result is not what it must be."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one question: a value that JSON can hold, or why there is none."""

    ok: bool
    value: Any = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a device's pre-flight: what must hold, and what was seen where it does not."""

    requirement: str
    held: bool
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What was found out about one device.

    ``reason`` says why it cannot be used, with the call that failed, or is None. ``dtypes`` are those that were tried:
    ``""`` for one that works, else why not. ``facts`` are what the report and ``gradconform doctor`` tell besides.
    ``simulated`` devices are left out by ``auto``.
    """

    device: str
    reason: str | None = None
    unknown: bool = False
    dtypes: Mapping[str, str] = field(default_factory=dict)
    preflight: tuple[Line, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def type(self) -> str:
        """The type of device."""
        return self.device.partition(":")[0]

    @property
    def faults(self) -> tuple[Line, ...]:
        """The lines of the pre-flight that do not hold."""
        return tuple(line for line in self.preflight if not line.held)

    @property
    def limits(self) -> Mapping[str, Any]:
        """What the device's object says it cannot do."""
        return dict(self.facts.get("known_limits", {}))

    @property
    def simulated(self) -> bool:
        """Whether the device's object says that there is no hardware behind it."""
        return bool(self.limits.get("simulated"))

    @property
    def ends_where_a_backward_raises(self) -> bool:
        """Whether a process has ended over an error that a backward raised; False where that was not asked."""
        return self.facts.get("backward_raises", False) is None

    @property
    def keeps_replaced_data(self) -> bool:
        """Whether ``parameter.data = tensor`` was tried and left the old values there."""
        return self.facts.get("replaces_data") is False

    @property
    def hides(self) -> tuple[str, ...]:
        """What cannot be watched there."""
        return hidden_by(self.facts)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return as_json(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Probe:
        """Return the record that :meth:`to_dict` wrote."""
        return cls(**{**values, "preflight": tuple(Line(**line) for line in values["preflight"])})


def hidden_by(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what cannot be watched on a device with these ``facts``: it raised or ended the process when asked.

    They are version, offset and address of a tensor, ``operations``, and the ``counter`` of memory.
    """
    prefix = "shows_"
    hidden = [name.removeprefix(prefix) for name, shown in facts.items() if name.startswith(prefix) and not shown]
    return (*hidden, "counter") if facts.get("counts_memory", False) is None else tuple(hidden)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked about one type of device; None stands for the accelerator that torch itself knows of.

    ``indices`` are those that were named. ``every`` asks about all that there are; a type that was named without an
    index stands for all of its own as well, since workers share them. ``plugins`` are imported first, from ``path``
    where it is given. ``flags`` are set while the numeric profile is measured, each as name and value.
    """

    type: str | None
    indices: tuple[int, ...] = ()
    every: bool = False
    plugins: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    flags: tuple[tuple[str, str], ...] = ()


#: A file with its size in bytes and the time of its last change in ns.
File = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Probed:
    """What a process found out for one request.

    ``files`` are those that it had imported or mapped, None where the system does not say.
    """

    probes: tuple[Probe, ...]
    files: tuple[File, ...] | None = None


def requests_for(
    names: Sequence[DeviceName],
    plugins: tuple[str, ...],
    here: frozenset[str] = frozenset(),
    flags: tuple[tuple[str, str], ...] = (),
) -> list[Request]:
    """Return one request per type of device, and one for torch's accelerator where devices are discovered.

    The CPU is known to work: nothing is asked of it. ``here`` are types that only this process knows.
    """
    named: dict[str, list[DeviceName]] = {}
    for name in names:
        if name.discovers is None and not name.is_cpu:
            named.setdefault(name.type, []).append(name)
    discovers = any(name.discovers for name in names)
    others = sorted({*registered_entries(), *here} - {"cpu"} - set(named)) if discovers else []
    requests = [Request(type=None, every=True, plugins=plugins, flags=flags)] if discovers else []
    for device_type in [*named, *others]:
        indices = [name.index for name in named.get(device_type, ())]
        numbers = tuple(int(index) for index in indices if index and index != "*")
        every = discovers or not {None, "*"}.isdisjoint(indices)
        requests.append(Request(type=device_type, indices=numbers, every=every, plugins=plugins, flags=flags))
    return requests


def probe_all(requests: Iterable[Request]) -> list[Probed]:
    """Return what was found out for each request.

    The processes run side by side, and what they leave behind is ended.
    """
    asked = list(requests)
    with closing(Orphans()), ThreadPoolExecutor(max_workers=max(1, min(len(asked), os.cpu_count() or 1))) as pool:
        return list(pool.map(probe_apart, asked))


def probe_apart(request: Request) -> Probed:
    """Return what was found out. A question that kills the process, or hangs, has that for its answer."""
    known: dict[str, Answer] = {}
    for _ in range(_LIVES):
        found = _ask(request, known)
        if found is not None:
            return found
    said = [f"{question}: {answer.message}" for question, answer in known.items() if not answer.ok]
    reason = f"it ended {_LIVES} processes: {'; '.join(said)[-400:]}"
    return Probed((Probe(device=request.type or "accelerator", reason=reason),))


def _ask(request: Request, known: dict[str, Answer]) -> Probed | None:
    """Return what was found out; None if the process ended over a question, and ``known`` has one answer more."""
    limit = time_limit()
    given = {**asdict(request), "path": sys.path, "known": {name: asdict(answer) for name, answer in known.items()}}
    at = "the start of a Python process"
    asked = f"probing {request.type or 'accelerators'} in another process"
    with waiting(asked, limit), closing(Worker("gradconform.devices.questions:answer", given, quiet=True)) as worker:
        worker.expect(limit)
        for said in worker.told():
            if isinstance(said, Exit):
                at = f"what comes after {at}" if at in known else at
                last = f": {said.last_line[:200]}" if said.last_line else ""
                known[at] = Answer(ok=False, message=f"{at} {_ended(said)}{last}")
            elif "probes" in said:
                return Probed(tuple(map(Probe.from_dict, said["probes"])), tupled(said["files"]))
            elif "answer" in said:
                known[at] = Answer(**said["answer"])
            else:
                at = said["asks"]
    return None


def _ended(exit_: Exit) -> str:
    if exit_.limit is not None:
        return f"did not return within {exit_.limit:g} s ({TIME_LIMIT_VARIABLE} sets the limit)"
    return f"ended the process {'by' if exit_.by_signal else 'with'} {exit_.words}"


def time_limit() -> float:
    """Return the limit in seconds, from the environment where it says so."""
    given = os.environ.get(TIME_LIMIT_VARIABLE)
    if not given:
        return TIME_LIMIT
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        msg = f"{TIME_LIMIT_VARIABLE}: expected seconds, such as {TIME_LIMIT:g}; got {given!r}"
        raise SelectionError(msg)
    return seconds
