"""The command ``gradconform doctor``: usable devices, dtypes and targets here, before any check runs.

Targets are imported in other processes, as devices are, since their code may be anyone's. Nothing here imports torch.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from gradconform.devices.choice import what_an_unknown_device_needs
from gradconform.devices.names import device_names
from gradconform.devices.probe import Request, requests_for
from gradconform.devices.probe_cache import cached_probes
from gradconform.exits import EXIT_CONFORMS, EXIT_ENVIRONMENT
from gradconform.files.records import as_json
from gradconform.report.health import Health, TargetState, health_lines
from gradconform.report.lines import wrapped_each
from gradconform.run.target_queries import query_targets
from gradconform.target.lookup import ENTRY_POINTS, registered
from gradconform.user_input.values import current_folder_first
from gradconform.version import CONTRACT_VERSION, KIT_VERSION

from .console import width, write, write_json
from .progress import waiting


def doctor(arguments: argparse.Namespace) -> int:
    """Print the findings; return 4 if a named device cannot be used."""
    named = arguments.device is not None
    with (
        current_folder_first(),
        waiting(f"probing {'devices' if named else 'devices and targets'} in other processes"),
    ):
        health = examine(arguments.device or ["all"], arguments.device_plugins or (), targets=not named)
    if arguments.json:
        write_json(as_json(health))
    else:
        write(health_lines(health, width()))
        unknown = (what_an_unknown_device_needs(probe.device) for probe in health.devices if probe.unknown)
        write(wrapped_each(dict.fromkeys(unknown), width(), hanging=4, role="warning"))
    useless = named and any(probe.reason is not None or probe.faults for probe in health.devices)
    return EXIT_ENVIRONMENT if useless else EXIT_CONFORMS


def examine(devices: Iterable[object], plugins: Iterable[str] = (), *, targets: bool = True) -> Health:
    """Return the probe of the named devices, with ``all`` also the CPU, and the state of the registered ``targets``.

    Raises :class:`~gradconform.user_input.values.SelectionError` for text that is no name of a device.
    """
    names, modules = device_names(devices), tuple(plugins)
    requests = requests_for(names, modules)
    if any(name.discovers or name.is_cpu for name in names):
        requests.insert(0, Request(type="cpu"))
    found = {probe.device: probe for probes in cached_probes(requests, fresh=True) for probe in probes}
    return Health(versions=_versions(), devices=tuple(found.values()), targets=tuple(_targets()) if targets else ())


def _versions() -> dict[str, str]:
    found = {"gradconform": KIT_VERSION, "contract": CONTRACT_VERSION, "python": platform.python_version()}
    try:
        found["torch"] = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        found["torch"] = "not installed"
    return {**found, "platform": platform.platform()}


def _targets() -> list[TargetState]:
    """Resolve the registered targets, in as many processes as there are processors: each imports torch once."""
    names = sorted(registered(ENTRY_POINTS))
    count = os.cpu_count() or 1
    with ThreadPoolExecutor(max_workers=count) as pool:
        found = [one for some in pool.map(_states, (names[start::count] for start in range(count))) for one in some]
    return sorted(found, key=lambda one: one.name)


def _states(names: Sequence[str]) -> list[TargetState]:
    reported = query_targets("gradconform.target.resolve:describe_targets", names)
    return [TargetState(name=name, **state) for name, state in reported]
