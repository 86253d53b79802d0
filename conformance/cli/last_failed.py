"""The checks that failed in the last run of a target from a folder, for ``--last-failed``.

They are stored in the user's cache folder, one file per folder and target; if that is not writable, nothing is stored.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from gradconform.contract.frozen import frozen
from gradconform.files.kit_files import cache_folder
from gradconform.files.user_files import replace_file
from gradconform.results import Report
from gradconform.user_input.values import PROFILES

#: The options that distinguish runs of one target: the subjects of the checks.
_JUDGED_ON = ("contract", "stage", "operation", "block", "setting", "fault", "schedule")


def last_failed(options: Mapping[str, Any], patterns: Iterable[str]) -> list[str]:
    """Return the ids of the checks that failed in the last run with such ``options`` and match the patterns.

    After a run in a larger profile, only checks of the current profile are returned.
    """
    globs = list(patterns) or ["*"]
    known = frozen(str(options["contract"]))
    profiles = {} if known is None else {check.id: check.profile for check in known.checks.values()}
    selected = PROFILES[: PROFILES.index(options["profile"]) + 1]
    return [
        check
        for check in _read(_file(options))
        if any(fnmatchcase(check, glob) for glob in globs) and profiles.get(check, "quick") in selected
    ]


def remember(report: Report) -> None:
    """Store the failed checks of a run; for a check that did not run, the stored state is kept."""
    file = _file(report.options)
    failed = {result.check for result in report.failures}
    reported = {result.check for result in report if result.status != "not_run"}
    known = sorted(failed | (set(_read(file)) - reported))
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(str(file), json.dumps(known))


def _file(options: Mapping[str, Any]) -> Path:
    about = [str(Path.cwd()), options.get("target"), *(options.get(name) for name in _JUDGED_ON)]
    named = hashlib.sha256(json.dumps(about, default=str).encode()).hexdigest()[:32]
    return cache_folder() / "last-failed" / f"{named}.json"


def _read(file: Path) -> list[str]:
    """Return the stored ids; empty if there are none or the file is invalid."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(found, list) and all(isinstance(one, str) for one in found):
            return found
    return []
