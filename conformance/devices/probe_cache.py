"""A cache of probes between runs: a run reuses an earlier run's results on a device for at most a day.

A probe is reused only if none of its inputs has changed. The inputs are the request, the environment variables, the
import path, the files in /dev, and the boot of the machine. They also include every file that the probe's process had
loaded or mapped. Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gradconform.files.kit_files import cache_folder, remove_old
from gradconform.files.user_files import LARGEST_REPORT, content, replace_file
from gradconform.version import KIT_VERSION

from .probe import File, Probe, Probed, Request, probe_all

#: The number of seconds for which a probe is reused.
KEPT = 24 * 3600.0
#: Variables that do not affect devices and differ between shells, and prefixes of such names.
_OF_SHELLS = frozenset({"_", "SHLVL", "PWD", "OLDPWD", "TERM", "COLUMNS", "LINES", "WINDOWID", "COLORTERM", "PS1"})
_PREFIXES = ("PYTEST_", "SSH_", "XDG_SESSION", "DBUS_", "GRADCONFORM_WAIT", "COV_")
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def cached_probes(requests: Sequence[Request], *, fresh: bool) -> list[list[Probe]]:
    """Return the probes for each request: kept ones of an earlier run, or new ones, which are then kept.

    ``fresh`` makes new ones for all. A probe from the cache has the fact ``cached_at``, its time in UTC.
    """
    paths = [_path(one) for one in requests]
    known = {number: probes for number, path in enumerate(paths) if not fresh and (probes := _read(path))}
    unknown = [one for number, one in enumerate(requests) if number not in known]
    found = iter(probe_all(unknown) if unknown else [])
    for number, path in enumerate(paths):
        if number not in known:
            probed = next(found)
            known[number] = list(probed.probes)
            _keep(path, probed)
    return [known[number] for number in range(len(requests))]


def _read(path: Path | None) -> list[Probe] | None:
    """Return the results of an earlier run; None if there are none or an input has changed since."""
    if path is None:
        return None
    try:
        values = json.loads(content(path, LARGEST_REPORT))
        made = float(values["made"])
        if not 0 <= time.time() - made <= KEPT or any(_stated(file[0]) != tuple(file) for file in values["files"]):
            return None
        probes = [Probe.from_dict(one) for one in values["probes"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    at = datetime.fromtimestamp(made, timezone.utc).isoformat(timespec="minutes")
    return [replace(probe, facts={**probe.facts, "cached_at": at}) for probe in probes]


def _keep(path: Path | None, probed: Probed) -> None:
    """Keep the results, unless a device is unusable: this may be temporary, so it is probed each time."""
    if path is None or not (probed.files and probed.probes):
        return
    if any(probe.reason is not None for probe in probed.probes):
        return
    values = {"made": time.time(), "files": probed.files, "probes": [probe.to_dict() for probe in probed.probes]}
    with contextlib.suppress(OSError):  # an unwritable cache is not used
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(str(path), json.dumps(values))
        remove_old(path.parent)


def loaded_files() -> list[File] | None:
    """Return the files that this process has imported or mapped; None if the system does not say."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    names = {line.split(maxsplit=5)[5] for line in maps.splitlines() if line.count(" ") and "/" in line}
    names |= {
        file for module in list(sys.modules.values()) if isinstance(file := getattr(module, "__file__", None), str)
    }
    found = (
        _stated(name) for name in sorted(names) if name.startswith("/") and not name.startswith(("/dev/", "/proc/"))
    )
    return [one for one in found if one is not None]


def _stated(name: str) -> File | None:
    """Return a regular file with its size and time; None if it no longer exists."""
    try:
        found = os.stat(name)  # noqa: PTH116 (thousands of them: a Path for each takes longer)
    except OSError:
        return None
    return (name, found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def _path(request: Request) -> Path | None:
    """Return the cache file for a request in this environment; None if the boot of the machine is unknown."""
    try:
        boot = _BOOT.read_text(encoding="ascii")
    except OSError:
        return None
    variables = {
        name: value for name, value in os.environ.items() if name not in _OF_SHELLS and not name.startswith(_PREFIXES)
    }
    about: dict[str, Any] = {
        "kit": KIT_VERSION, "python": sys.executable, "path": sys.path, "folder": str(Path.cwd()), "boot": boot,
        "request": asdict(request), "variables": variables, "nodes": sorted(_nodes()),
    }  # fmt: skip
    named = hashlib.sha256(json.dumps(about, sort_keys=True).encode(errors="surrogateescape")).hexdigest()[:32]
    return cache_folder() / "probes" / f"{named}.json"


def _nodes() -> Iterator[str]:
    """Yield the machine's character devices except terminals: a GPU that is added or hidden changes them."""
    with contextlib.suppress(OSError), os.scandir("/dev") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if stat.S_ISCHR(entry.stat().st_mode) and not entry.name.startswith(("tty", "pts", "vcs")):
                    yield entry.name
