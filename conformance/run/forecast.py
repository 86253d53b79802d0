"""How long a run on devices takes: an estimate before the first check, corrected while checks run.

The costs are measured, in seconds of one core, by ``python benchmarks/check_costs.py``, which prints :data:`COSTS`.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gradconform.contract.extra_ids import EDGES, OPERATIONS, oracle_of
from gradconform.files.records import Header
from gradconform.results import Place
from gradconform.text.counts import count

from .in_short import operations_in_short


class Cost(NamedTuple):
    """The seconds that a check takes beside the device, and those that it takes on a device as fast as the CPU."""

    beside: float
    on_device: float


#: The pace of the CPU (:mod:`gradconform.devices.pace`) on which the costs were measured, in seconds.
PACE = 0.00029

#: The cost of a check by its kind, on average.
COSTS: Mapping[str, Cost] = {
    "blocks": Cost(0.020, 0.034),
    "contract": Cost(0.0031, 0.015),
    "faults": Cost(0.025, 0.025),
    "ops": Cost(0.011, 0.014),
    "ops.additive": Cost(0.020, 0.0022),
    "ops.alone": Cost(0.024, 0.0029),
    "ops.edges": Cost(0.058, 0.0063),
    "ops.finite-differences": Cost(0.020, 0.0022),  # not in float32: as rows are
    "ops.layout": Cost(0.041, 0.011),
    "settings": Cost(0.002, 0.014),
}

#: How many times as many samples have every pair of values, over all operations: 7,376 and 1,514.
_EVERY_PAIR = 5

#: The seconds in which a worker imports torch and repeats the plan.
_START = 4.0
#: Once this share of the expected time has passed, the time that is left follows from how long the rest took.
_KNOWN = 0.05


def kind_of(check: str) -> str:
    """Return the kind of a check: the first part of its id, for oracles the first two, or ``contract``."""
    area, oracle = check.partition(".")[0], oracle_of(check)
    if oracle is not None:
        return f"{area}.{oracle}"
    return area if area in COSTS else "contract"


def expected_seconds(places: Iterable[Place], paces: Mapping[str, float], *, every_pair: bool = False) -> float:
    """Return the seconds of one core that the checks at ``places`` take.

    A device whose pace could not be measured counts as the CPU here. With ``every_pair``, the samples at the edges of
    kernels have every pair of values, or else every value.
    """
    machine = paces.get("cpu", PACE)
    total = 0.0
    for place in places:
        kind = kind_of(place.check)
        cost = COSTS[kind]
        seconds = (cost.beside * machine + cost.on_device * paces.get(place.device, machine)) / PACE
        total += seconds * (_EVERY_PAIR if every_pair and kind == f"{OPERATIONS}.{EDGES}" else 1)
    return total


class Forecast:
    """The expected time of the checks that are left of a run, by the paces in its header."""

    def __init__(self, header: Header, left: Iterable[Place], workers: int) -> None:
        """Start the time; more ``workers`` than cores or checks do not make a run faster."""
        self._paces, self._workers = header.paces, workers
        options = header.report.get("options", {})
        pairs = not operations_in_short(options.get("profile", "quick"), options.get("operation") or ())
        self._costs = {place: expected_seconds([place], header.paces, every_pair=pairs) for place in left}
        self._whole = sum(self._costs.values())
        at_once = max(1, min(workers, os.cpu_count() or 1, len(self._costs)))
        self.seconds = _START + self._whole / at_once
        self._began = time.monotonic()
        self._finished = 0
        self._done = 0.0

    @property
    def sentence(self) -> str:
        """Return the number of checks, the expected time, and what the estimate is made of."""
        checks = "1 check" if len(self._costs) == 1 else f"{len(self._costs):,} checks"
        return (
            f"{checks}, about {duration(self.seconds)} with {count(self._workers, 'worker')} (estimate: {self._basis})"
        )

    @property
    def _basis(self) -> str:
        devices = dict.fromkeys(place.device for place in self._costs if place.device != "cpu")
        machine = self._paces.get("cpu", PACE)
        compared = [
            f"a step on {name} takes {self._paces[name] / machine:.2g} times as long as on the CPU"
            if name in self._paces
            else f"{name} counts as the CPU, since a step on it failed"
            for name in devices
        ]
        return "; ".join(["mean costs of each kind of check", *compared])

    def finish(self, place: Place) -> None:
        """Note that a check has a result; one that was not left is ignored."""
        if place in self._costs:
            self._finished += 1
            self._done += self._costs[place]

    @property
    def passed(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._began

    @property
    def seconds_left(self) -> float:
        """Return the expected seconds until the last result; with some results, by how long these took."""
        share = self._done / self._whole if self._whole else 1.0
        return self.passed * (1 - share) / share if share > _KNOWN else max(0.0, self.seconds - self.passed)

    @property
    def progress(self) -> str:
        """Return the progress as a sentence."""
        ran = f"ran {self._finished:,} of {len(self._costs):,} checks after {self.passed:.0f} s"
        return f"{ran}; about {duration(self.seconds_left)} left"


def duration(seconds: float) -> str:
    """Return a time rounded to two digits, in s, min or h.

    >>> duration(3.2), duration(71), duration(400), duration(9000)
    ('4 s', '75 s', '7 min', '2.5 h')
    """
    if seconds < 10:  # noqa: PLR2004 (a digit)
        return f"{math.ceil(seconds)} s"
    if seconds < 120:  # noqa: PLR2004 (two minutes)
        return f"{5 * math.ceil(seconds / 5)} s"
    if seconds < 5400:  # noqa: PLR2004 (an hour and a half)
        return f"{math.ceil(seconds / 60)} min"
    return f"{seconds / 3600:.2g} h"
