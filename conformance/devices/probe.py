"""Probes of devices, run in separate processes with a time limit. Nothing here imports torch.

Each process reports a question before it tries it, so that a crash can be attributed. The questions and the process
that tries them are in :mod:`gradconform.devices.probe_questions`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from gradconform.files.records import as_json, tupled
from gradconform.process.fork_server import ready_server
from gradconform.process.imports import TORCH
from gradconform.process.orphans import Orphans
from gradconform.process.wait_notices import waiting
from gradconform.process.worker import Exit, Worker
from gradconform.user_input.values import SelectionError

from .names import DeviceName
from .registry import registered_entries

#: The time limit of one process in seconds: the first start of a driver or the first build of a backend is slow.
TIME_LIMIT = 180.0
TIME_LIMIT_VARIABLE = "GRADCONFORM_PROBE_SECONDS"

#: The number of crashes after which a device type's probe stops with only that result.
_LIVES = 8

#: Facts that a tensor may show. Storage and address are one fact: each is read in order to get the other.
FACTS = ("version", "offset", "address")

#: Other observations of a device: each operation as it is dispatched, and its memory counter.
OPERATIONS, COUNTER = "operations", "counter"


class WrongAnswerError(Exception):
    """The device completed a call, but its result is wrong."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one question: a JSON value, or the reason why there is none."""

    ok: bool
    value: Any = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a device's pre-flight: the requirement, and the observation if the device does not meet it.

    A ``tolerated`` line that does not hold makes no value wrong.
    """

    requirement: str
    held: bool
    message: str = ""
    tolerated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The probe results of one device.

    ``reason`` says why it cannot be used, with the call that failed, or is None. ``dtypes`` are those that were tried:
    ``""`` if the dtype works, else the reason. ``facts`` are other entries of the report and ``gradconform doctor``.
    ``auto`` skips ``simulated`` devices.
    """

    device: str
    reason: str | None = None
    unknown: bool = False
    dtypes: Mapping[str, str] = field(default_factory=dict)
    preflight: tuple[Line, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def type(self) -> str:
        """Return the type of device."""
        return self.device.partition(":")[0]

    @property
    def faults(self) -> tuple[Line, ...]:
        """Return the lines of the pre-flight that do not hold."""
        return tuple(line for line in self.preflight if not line.held)

    @property
    def limits(self) -> Mapping[str, Any]:
        """Return the limits that the device's object states."""
        return dict(self.facts.get("known_limits", {}))

    @property
    def simulated(self) -> bool:
        """Whether the device's object says that it has no hardware."""
        return bool(self.limits.get("simulated"))

    @property
    def ends_where_a_backward_raises(self) -> bool:
        """Whether an error raised in a backward has ended the process; False if that was not tried."""
        return self.facts.get("backward_raises", False) is None

    @property
    def keeps_replaced_data(self) -> bool:
        """Whether ``parameter.data = tensor`` was tried and left the old values in place."""
        return self.facts.get("replaces_data") is False

    @property
    def reads_views(self) -> str:
        """Return how views are read, one of :data:`gradconform.devices.copies.Reading`."""
        return str(self.facts.get("reads_views") or "copy")

    @property
    def wrong_copies(self) -> tuple[str, ...]:
        """Return the ways in which the device copies tensors wrong."""
        return tuple(self.facts.get("wrong_copies") or ())

    @property
    def hides(self) -> tuple[str, ...]:
        """Return the facts that cannot be observed on the device."""
        return hidden_by(self.facts)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return as_json(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Probe:
        """Return the record that :meth:`to_dict` wrote."""
        return cls(**{**values, "preflight": tuple(Line(**line) for line in values["preflight"])})


def hidden_by(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the facts that cannot be observed on a device with these ``facts``: reading them raised or crashed.

    They are version, offset and address of a tensor, ``operations``, and the ``counter`` of memory.
    """
    prefix = "shows_"
    hidden = [name.removeprefix(prefix) for name, shown in facts.items() if name.startswith(prefix) and not shown]
    return (*hidden, COUNTER) if facts.get("counts_memory", False) is None else tuple(hidden)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The probe request for one device type; None means the accelerator that torch itself knows.

    ``indices`` are those that were named. ``every`` requests all existing ones; so does a type named without an index,
    since workers share its indices. ``plugins`` are imported first, from ``path`` if it is given. ``flags`` are set
    while the numeric profile is measured, each as name and value.
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
    """The results of a process for one request.

    ``files`` are those that the process had imported or mapped; None if the system does not say.
    """

    probes: tuple[Probe, ...]
    files: tuple[File, ...] | None = None


def requests_for(
    names: Sequence[DeviceName],
    plugins: tuple[str, ...],
    here: frozenset[str] = frozenset(),
    flags: tuple[tuple[str, str], ...] = (),
) -> list[Request]:
    """Return one request per device type, and one for torch's accelerator if devices are discovered.

    The CPU is known to work, so it has no request. ``here`` are types that only this process knows.
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
    """Return the results of each request.

    The processes run in parallel, and processes that they leave behind are ended.
    """
    listed = list(requests)
    ready_server()  # here, since it ends with the thread that starts it
    with closing(Orphans()), ThreadPoolExecutor(max_workers=max(1, min(len(listed), os.cpu_count() or 1))) as pool:
        return list(pool.map(probe_in_process, listed))


def fragile_questions(name: str) -> dict[str, str]:
    """Return the questions about a device that may end the process, by fact. They are asked last and in this order.

    So a device that ends the process at the last of them needs no other process, whose start takes seconds.
    """
    shown = {f"shows_{fact}": f"{fact} of {name}" for fact in (OPERATIONS, *FACTS)}
    return {"backward_raises": f"backward_raises of {name}", **shown}


def probe_in_process(request: Request) -> Probed:
    """Return the results of a request; a crash or a timeout is recorded as the result of its question."""
    known: dict[str, Answer] = {}
    found = None
    for _ in range(_LIVES):
        found = _ask(request, known) or found
        if found is not None and _is_complete(found, known):
            break
    else:
        failures = [f"{question}: {answer.message}" for question, answer in known.items() if not answer.ok]
        reason = f"it ended {_LIVES} processes: {'; '.join(failures)[-400:]}"
        return Probed((Probe(device=request.type or "accelerator", reason=reason),))
    return replace(found, probes=tuple(_with_fragile(probe, known) for probe in found.probes))


def _is_complete(found: Probed | None, known: Mapping[str, Answer]) -> bool:
    """Return whether every fragile question about a usable device has its answer."""
    usable = [] if found is None else [probe for probe in found.probes if probe.reason is None]
    return found is not None and all(
        question in known for probe in usable for question in fragile_questions(probe.device).values()
    )


def _with_fragile(probe: Probe, known: Mapping[str, Answer]) -> Probe:
    """Return the results of a device with its fragile facts; one that ended the process is None or False."""
    if probe.reason is not None:
        return probe
    questions = fragile_questions(probe.device)
    seen = questions.pop(f"shows_{OPERATIONS}")
    facts = {fact: known[question].value for fact, question in questions.items()}
    facts[f"shows_{OPERATIONS}"] = known[seen].ok  # reported after the tensor's own facts
    return replace(probe, facts={**probe.facts, **facts})


def _ask(request: Request, known: dict[str, Answer]) -> Probed | None:
    """Return the results without the fragile facts; None if the process ended before it had them.

    Each answer is added to ``known``; so is the end of the process, as the answer to its last question.
    """
    limit = time_limit()
    given = {**asdict(request), "path": sys.path, "known": {name: asdict(answer) for name, answer in known.items()}}
    found = None
    at = "the start of a Python process"
    activity = f"probing {request.type or 'accelerators'} in another process"
    with (
        waiting(activity, limit),
        closing(Worker("gradconform.devices.probe_questions:answer", given, quiet=True, imports=TORCH)) as worker,
    ):
        worker.expect(limit)
        for message in worker.messages():
            if isinstance(message, Exit):
                at = f"the step after {at}" if at in known else at
                last = f": {message.last_line[:200]}" if message.last_line else ""
                known[at] = Answer(ok=False, message=f"{at} {_ended(message)}{last}")
            elif "probes" in message:
                found = Probed(tuple(map(Probe.from_dict, message["probes"])), tupled(message["files"]))
            elif "answer" in message:
                known[at] = Answer(**message["answer"])
            else:
                at = message["asks"]
            if _is_complete(found, known):
                break
    return found


def _ended(exit_: Exit) -> str:
    if exit_.limit is not None:
        return f"did not return within {exit_.limit:g} s ({TIME_LIMIT_VARIABLE} sets the limit)"
    return f"ended the process {'by' if exit_.by_signal else 'with'} {exit_.words}"


def time_limit() -> float:
    """Return the limit in seconds; the environment may override it."""
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
