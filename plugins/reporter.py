"""What the reporting process does: gathers results, tells hooks of them, writes the JSON report and the summary."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from gradconform.plugins.options import Options
    from gradconform.plugins.recorder import Recorder


class Reporter:
    """The hooks of the one process that reports: pytest's own, or the controller of pytest-xdist."""

    def __init__(self, config: pytest.Config, options: Options) -> None:
        self._config, self._options = config, options
        self._written: list[Path] = []

    @cached_property
    def recorder(self) -> Recorder:
        """The results so far; made when the first run is heard of."""
        from gradconform.plugins.recorder import Recorder  # noqa: PLC0415 (an unused plugin needs none)

        return Recorder()

    @property
    def _has_run(self) -> bool:
        """Whether there is something to report."""
        return not self._config.option.collectonly and "recorder" in vars(self) and bool(self.recorder)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Gather the result that a report carries."""
        payload = getattr(report, "gradconform", None)
        if payload is not None and report.when == "call":
            result = self.recorder.add(payload)
            self._config.hook.pytest_gradconform_result(result=result, config=self._config)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Hand out and write the reports; a session that judged nothing must not end as if all were well."""
        if not self._has_run:
            return
        for run in self.recorder:
            if not run.added:
                self._config.hook.pytest_gradconform_report(report=run.report(), config=self._config)
        if self._options.json is not None:
            self._written = self.recorder.write(self._options.json)
        if exitstatus == pytest.ExitCode.OK and self.recorder.judged_nothing:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the summary."""
        if self._has_run:
            from gradconform.plugins.summary import write_summary  # noqa: PLC0415 (an unused plugin needs none)

            write_summary(terminalreporter, self.recorder, self._written)
