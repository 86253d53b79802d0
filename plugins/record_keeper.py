"""Keeps the results of ``--gradconform TARGET`` as they come, in the file of ``--gradconform-ndjson``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gradconform.record_file import RecordFile
from gradconform.records import Place, RecordsError
from gradconform.results import Report, Result

if TYPE_CHECKING:
    from gradconform.plugins.contract_run import ContractRun
    from gradconform.plugins.options import Options


class RecordKeeper:
    """The file of one run. A disk that fills up ends the session at once."""

    def __init__(self, path: str, run: ContractRun, options: Options) -> None:
        """Open the file and write its first line; raise ``pytest.UsageError`` where that cannot be."""
        try:
            self._file = RecordFile(path)
            header = run.session.header(_repeatable(options))
            self._file.begin(replace(header, report=run.header["report"]))
        except RecordsError as error:
            msg = f"--gradconform-ndjson: {error}"
            raise pytest.UsageError(msg) from error
        self._key = run.header["key"]

    def add(self, key: str, result: Result) -> None:
        """Append a result of the run ``key``, if that is the one that is kept."""
        if key == self._key:
            try:
                self._file.add(result)
            except RecordsError as error:
                pytest.exit(f"--gradconform-ndjson: {error}", pytest.ExitCode.INTERNAL_ERROR)

    def close(self, report: Report | None) -> None:
        """Close the file; a report that has a result for all that was planned is the end of it."""
        if report is not None and len({Place.of(result) for result in report.results}) == report.planned:
            self._file.end(report.verdict)
        self._file.close()


def _repeatable(options: Options) -> Mapping[str, Any]:
    """Return the options with which ``gradconform run --resume`` can go on."""
    return {
        "target": options.target,
        "device": list(options.device),
        "dtype": list(options.dtype),
        "profile": options.profile,
        "checks": list(options.checks) or None,
        "exclude": list(options.exclude_checks),
        "seed": options.seed,
        "strict": options.strict,
        "probe": False,
        "schedule": [],
        "shard": None if options.shard is None else str(options.shard),
        "waivers": None if options.waivers is None else str(options.waivers),
    }
