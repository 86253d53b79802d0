"""The command ``gradconform device``: one run of everything that can be judged on a device, and one verdict."""

from __future__ import annotations

import argparse
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from gradconform.contract.extra_ids import name_in_id
from gradconform.exits import EXIT_DOES_NOT, EXIT_INTERRUPTED
from gradconform.report.device_verdict import device_verdict
from gradconform.report.lines import Line
from gradconform.run.forecast import Forecast
from gradconform.run.in_short import RIGHT
from gradconform.run.options import OPTIONS, RunOptions
from gradconform.run.sources import SOURCES

from .arguments import DEVICE_DEFAULTS
from .console import write
from .run import Way, begin, execution, judge, records

if TYPE_CHECKING:
    from gradconform.results import Place
    from gradconform.user_input.option import Option


def device(arguments: argparse.Namespace) -> int:
    """Judge devices; return 0 if everything that was tried is right, 1 if something is wrong, else the run's code."""
    begin(arguments)
    arguments.device = [name for several in arguments.device for name in several] or None
    if arguments.device is None and arguments.resume is None:
        arguments.parser.error(
            "name a device, such as cuda, npu:0 or auto; 'gradconform doctor' lists the devices here"
        )
    more = _choose(arguments) if arguments.resume is None else []
    way = Way(RunOptions, partial(execution, of_device=True), forecast=Forecast)
    with records(arguments) as file:
        found = judge(arguments, file, way, order=_turn)
    reported = device_verdict(found.report, Counter(place.device for place in found.planned))
    write([*more, *reported.lines])
    return EXIT_DOES_NOT if reported.wrong and found.code != EXIT_INTERRUPTED else found.code


#: The options whose default judges only a part: that part, and the value that judges everything.
_MORE = {"dtype": ("float32 alone", "all"), "fault": ("no known faults", "all")}


def _choose(arguments: argparse.Namespace) -> list[Line]:
    """Plan everything, or only the parts that options name: with --operation, those operations and no others.

    The profile names the contract. Returns a line on the options that judge more than the default.
    """
    parts = [source for source in SOURCES.values() if source.area]
    named = [one for one in parts if any(_names_a_part(arguments, option) for option in one.options)]
    contract = not named or arguments.profile is not None
    vars(arguments).update(target=RIGHT, waivers=None, no_waivers=True, with_contract=contract)
    left_out = {name for one in parts if named and one not in named for name in one.by_name}
    unset = {name for name in DEVICE_DEFAULTS if not getattr(arguments, name)}
    for name, usual in DEVICE_DEFAULTS.items():
        if name not in left_out:
            setattr(arguments, name, getattr(arguments, name) or usual)
    more = [name for name in _MORE if name in unset - left_out]
    judged = ", ".join(_MORE[name][0] for name in more)
    options = " and ".join(f"{OPTIONS[name].flag} {_MORE[name][1]}" for name in more)
    return [Line(f"by default: {judged}; {options} {'judges' if len(more) == 1 else 'judge'} more")] if more else []


def _names_a_part(arguments: argparse.Namespace, option: Option) -> bool:
    """Return whether a user's option selects checks of a source; ``none`` selects nothing."""
    given = getattr(arguments, option.name) if option.selects else None
    return given is not None and bool(option.check(given))


def _turn(place: Place) -> int:
    """Return the position of a check: all of float32 first, then the other dtypes, then what says least, the faults.

    In a dtype, the contract comes first, and then the sources in their order.
    """
    areas = [source.area for source in SOURCES.values() if source.area and not source.last]
    if any(name_in_id(place.check, source.area) is not None for source in SOURCES.values() if source.last):
        return 2 * len(areas) + 2
    later = 0 if place.dtype == "float32" else len(areas) + 1
    return later + next((turn for turn, area in enumerate(areas, 1) if name_in_id(place.check, area) is not None), 0)
