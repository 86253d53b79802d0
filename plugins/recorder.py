"""Gathers results in the process that reports, whichever process ran them, and writes the reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradconform.results import Report, Result

#: The key of the run that ``--gradconform TARGET`` asks for.
ZERO_LINES = "gradconform"


@dataclass(slots=True)
class RunRecord:
    """The results of one run so far, by position in its plan."""

    header: Mapping[str, Any]
    results: dict[int, Result] = field(default_factory=dict)

    @property
    def added(self) -> bool:
        """Whether this is the run of added stages, which is no part of the contract."""
        return bool(self.header["kind"] == "added")

    @property
    def cells(self) -> list[tuple[str, str]]:
        """The devices and dtypes of the run."""
        return [(device, dtype) for device, dtype in self.header["cells"]]

    def report(self) -> Report:
        """Return the report, its results in the order of the plan."""
        return Report(**self.header["report"], results=[self.results[position] for position in sorted(self.results)])


class Recorder:
    """All runs of one pytest session, in the order in which they were heard of."""

    def __init__(self) -> None:
        self._runs: dict[str, RunRecord] = {}

    def expect(self, header: Mapping[str, Any]) -> RunRecord:
        """Note that there is a run, so that it is reported even where none of its checks comes to run."""
        return self._runs.setdefault(str(header["key"]), RunRecord(header))

    def add(self, payload: Mapping[str, Any]) -> Result:
        """Add the result that a test's report carries, and return it; a second result of a check takes its place."""
        result = Result.from_dict(payload["result"])
        self.expect(payload["run"]).results[payload["position"]] = result
        return result

    def __iter__(self) -> Iterator[RunRecord]:
        """Iterate over the runs."""
        return iter(self._runs.values())

    def __bool__(self) -> bool:
        """Tell whether there is a run."""
        return bool(self._runs)

    @property
    def judged_nothing(self) -> bool:
        """Whether ``--gradconform TARGET`` has results, and all of them say that a check could not be run."""
        run = self._runs.get(ZERO_LINES)
        return run is not None and bool(run.results) and not run.report().summary["ran"]

    @property
    def has_idle_waivers(self) -> bool:
        """Whether a waiver met no result in a whole run of profile ``full``."""
        return any(run.report().idle_waivers for run in self._runs.values() if not run.added)

    def write(self, path: Path) -> list[Path]:
        """Write one JSON report per run of the contract: ``path``, then ``path`` with ``-2`` in its name, and so on."""
        written: list[Path] = []
        for number, run in enumerate((run for run in self._runs.values() if not run.added), 1):
            to = path if number == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")
            to.write_text(run.report().to_json(), encoding="utf-8")
            written.append(to)
        return written
