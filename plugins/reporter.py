"""What the reporting process does: gathers results, tells hooks of them, writes the JSON report and the summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pytest

from gradconform.plugins.lost_items import LostItems

if TYPE_CHECKING:
    from pathlib import Path

    from gradconform.plugins.contract_run import ContractRun
    from gradconform.plugins.options import Options
    from gradconform.plugins.record_keeper import RecordKeeper
    from gradconform.plugins.recorder import Recorder


class Reporter:
    """The hooks of the one process that reports: pytest's own, or the controller of pytest-xdist."""

    def __init__(self, config: pytest.Config, options: Options) -> None:
        self._config, self._options = config, options
        self._written: list[Path] = []
        self._lost = LostItems()
        self._keeper: RecordKeeper | None = None

    @cached_property
    def recorder(self) -> Recorder:
        """The results so far; made when the first run is heard of."""
        from gradconform.plugins.recorder import Recorder  # noqa: PLC0415 (an unused plugin needs none)

        return Recorder()

    @property
    def _has_run(self) -> bool:
        """Whether there is something to report."""
        return not self._config.option.collectonly and "recorder" in vars(self) and bool(self.recorder)

    def expect(self, runs: Sequence[ContractRun]) -> None:
        """Note the runs of ``--gradconform TARGET``, and begin the file that keeps the results of the contract's."""
        for run in runs:
            self.recorder.expect(run.header)
        if self._options.ndjson is not None and not self._config.option.collectonly:
            from gradconform.plugins.record_keeper import RecordKeeper  # noqa: PLC0415 (few sessions keep records)

            self._keeper = RecordKeeper(str(self._options.ndjson), runs[0], self._options)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Hand what was found out about devices to a worker of pytest-xdist."""
        from gradconform.plugins.chosen_devices import hand_down  # noqa: PLC0415 (an unused plugin needs none)

        hand_down(self._config, node)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Gather the result that a report carries."""
        self._lost.note(report)
        payload = getattr(report, "gradconform", None)
        if payload is not None and report.when == "call":
            self._add(payload)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str) -> None:
        """Give the check that a worker of pytest-xdist crashed in a result."""
        payload = self._lost.payload(crashitem)
        if payload is not None:
            self._add(payload)

    def _add(self, payload: Mapping[str, Any]) -> None:
        result = self.recorder.add(payload)
        if self._keeper is not None:
            self._keeper.add(payload["run"]["key"], result)
        self._config.hook.pytest_gradconform_result(result=result, config=self._config)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Hand out and write the reports; a session that judged nothing must not end as if all were well."""
        if self._keeper is not None:
            self._keeper.close(next((run.report() for run in self.recorder), None))
        if not self._has_run:
            return
        for run in self.recorder:
            if not run.added:
                self._config.hook.pytest_gradconform_report(report=run.report(), config=self._config)
        if self._options.json is not None:
            self._written = self.recorder.write(self._options.json)
        if exitstatus == pytest.ExitCode.OK and self.recorder.judged_nothing:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
        elif exitstatus == pytest.ExitCode.OK and self.recorder.has_idle_waivers:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the summary."""
        if self._has_run:
            from gradconform.plugins.summary import write_summary  # noqa: PLC0415 (an unused plugin needs none)

            write_summary(terminalreporter, self.recorder, self._written)
