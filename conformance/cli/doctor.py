"""The command ``gradconform doctor``: what the kit finds here, device by device, before anything is judged."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from gradconform.cli.console import refuse, width, write, write_text
from gradconform.cli.device_options import add_device_plugin
from gradconform.cli.parsing import SEVERAL
from gradconform.results import EXIT_CONFORMS, EXIT_ENVIRONMENT

if TYPE_CHECKING:
    from gradconform.devices.asking import Probe


def add_doctor(found: Any) -> None:
    """Add the command to the parsers that ``found`` makes."""
    one = found.add_parser(
        "doctor",
        help="show the devices, dtypes and targets that can be used here, and what each device gets wrong",
        description=(
            "Probe devices, each type in a process of its own with a time limit: which indices can be used, in which "
            "dtypes, and which lines of the pre-flight hold; show the registered targets and whether they are "
            "installed. The exit code is 4 where a device that is named cannot be used, or fails its pre-flight."
        ),
    )
    one.set_defaults(command=doctor, parser=one)
    one.add_argument("--device", **SEVERAL, metavar="DEVICE", help="only these, named as for run (default: all)")
    add_device_plugin(one)
    one.add_argument("--json", action="store_true", help="print JSON")


def doctor(arguments: argparse.Namespace) -> int:
    """Print what was found out; 4 where a named device is of no use."""
    from gradconform.cli.current_folder import current_folder_first  # noqa: PLC0415 (as the other commands)
    from gradconform.devices.examination import examine  # noqa: PLC0415 (only this command examines)
    from gradconform.devices.selection import SelectionError  # noqa: PLC0415 (as above)
    from gradconform.report.health import health_lines  # noqa: PLC0415 (only this command prints it)

    names = arguments.device or ["all"]
    try:
        with current_folder_first():
            health = examine(names, arguments.device_plugin or ())
    except SelectionError as error:
        return refuse(error)
    if arguments.json:
        write_text(json.dumps(health.to_dict(), indent=2))
    else:
        write(health_lines(health, width()))
    ill = arguments.device is not None and any(_ill(probe) for probe in health.probes)
    return EXIT_ENVIRONMENT if ill else EXIT_CONFORMS


def _ill(probe: Probe) -> bool:
    return probe.reason is not None or bool(probe.faults)
