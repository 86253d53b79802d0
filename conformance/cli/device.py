"""The command ``gradconform device``: one run of all that can be asked of a device, and one verdict on it."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gradconform.contract.beside import BLOCKS, OPERATIONS, named_in
from gradconform.exits import EXIT_DOES_NOT
from gradconform.report.device_verdict import device_verdict

from .arguments import DEVICE_DEFAULTS
from .console import write
from .run import begin, judge, records

if TYPE_CHECKING:
    from gradconform.records import Header
    from gradconform.results import Place
    from gradconform.run.execution import Execution, OnResult, OnStart

#: What is right, so that whatever is wrong is the device's.
_RIGHT = "reference-split"


def device(arguments: argparse.Namespace) -> int:
    """Judge devices; return 0 where all that was tried is right, 1 where something is wrong, else the run's code."""
    begin(arguments)
    arguments.device = [name for several in arguments.device for name in several] or None
    if arguments.device is None and arguments.resume is None:
        arguments.parser.error("name a device, such as cuda, npu:0 or auto; 'gradconform doctor' shows those there are")
    if arguments.resume is None:
        vars(arguments).update(target=_RIGHT, waivers=None, no_waivers=True, with_contract=True)
        for name, usual in DEVICE_DEFAULTS.items():
            setattr(arguments, name, getattr(arguments, name) or usual)
    planned: Counter[str] = Counter()

    def widest_first(run: Execution) -> Execution:
        planned.update(place.device for place in run.header.places)
        return WidestFirst(run)

    with records(arguments) as file:
        report, code = judge(arguments, file, around=widest_first)
    told = device_verdict(report, planned)
    write(list(told.lines))
    return EXIT_DOES_NOT if told.wrong else code


class WidestFirst:
    """A run that begins with what says most: the contract in every dtype, then the rest in float32, then the others."""

    def __init__(self, run: Execution) -> None:
        """Take the run."""
        self._run = run
        self.header: Header = run.header

    def run(self, on_result: OnResult, *, on_start: OnStart, places: Iterable[Place]) -> None:
        """Run the items at ``places``, those that say most first."""
        self._run.run(on_result, on_start=on_start, places=sorted(places, key=_late))

    def close(self) -> None:
        """Let go of what was made ready."""
        self._run.close()


def _late(place: Place) -> int:
    beside = any(named_in(place.check, area) is not None for area in (OPERATIONS, BLOCKS))
    return 0 if not beside else 1 if place.dtype == "float32" else 2
