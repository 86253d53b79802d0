"""What ``gradconform doctor`` finds out: every device that is named or found, and every registered target.

Targets are imported in processes of their own as well: one of them may be anybody's. Nothing here imports torch.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from gradconform.devices.asking import Probe
from gradconform.devices.names import device_names
from gradconform.devices.probing import probe_all, time_limit
from gradconform.devices.questions import Request
from gradconform.devices.requests import requests_for
from gradconform.version import CONTRACT_VERSION, KIT_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """A registered target: its version and where it is, or why it cannot be used."""

    name: str
    version: str | None = None
    file: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What was found here."""

    versions: dict[str, str]
    probes: tuple[Probe, ...]
    targets: tuple[TargetState, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return {
            "versions": self.versions,
            "devices": [probe.to_dict() for probe in self.probes],
            "targets": [
                {"name": one.name, "version": one.version, "file": one.file, "problem": one.problem}
                for one in self.targets
            ],
        }


def examine(devices: Iterable[object], plugins: Iterable[str] = ()) -> Health:
    """Probe the devices that are named, the CPU as well, and look for the registered targets.

    Raises :class:`~gradconform.devices.SelectionError` for what is no name of a device.
    """
    names, modules = device_names(devices), tuple(plugins)
    requests = requests_for(names, modules)
    if any(name.discovers or name.is_cpu for name in names):
        requests.insert(0, Request(type="cpu"))
    found = {probe.device: probe for probes in probe_all(requests) for probe in probes}
    return Health(versions=_versions(), probes=tuple(found.values()), targets=tuple(_targets()))


def _versions() -> dict[str, str]:
    found = {"gradconform": KIT_VERSION, "contract": CONTRACT_VERSION, "python": platform.python_version()}
    try:
        found["torch"] = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        found["torch"] = "not installed"
    return {**found, "platform": platform.platform()}


def _targets() -> list[TargetState]:
    names = sorted(entry.name for entry in importlib.metadata.entry_points(group="gradconform.adapters"))
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        return list(pool.map(_target, names))


_RESOLVE = """
import json, os, sys
pipe = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
from gradconform.targets import TargetError, resolve
try:
    found = resolve(sys.argv[1])
    said = {"version": found.version, "file": found.file}
except TargetError as error:
    said = {"problem": str(error)}
print(json.dumps(said), file=pipe, flush=True)
os._exit(0)
"""


def _target(name: str) -> TargetState:
    """Resolve a registered target in a process of its own."""
    limit = time_limit()
    try:
        done = subprocess.run(  # noqa: S603 (this Python, and a name that is registered)
            [sys.executable, "-c", _RESOLVE, name], capture_output=True, text=True, timeout=limit, check=False
        )
        return TargetState(name=name, **json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        return TargetState(name=name, problem=f"did not load within {limit:g} s")
    except ValueError:
        last = next(iter(done.stderr.strip().splitlines()[-1:]), "")
        return TargetState(name=name, problem=f"ended its process with exit code {done.returncode}: {last}")
