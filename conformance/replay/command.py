"""The command that runs one result again."""

from __future__ import annotations

import shlex

from gradconform.defaults import DEFAULT_SEED
from gradconform.results import Report, Result


def replay_command(report: Report, result: Result) -> str:
    """Return the command line that runs the check of ``result`` again, alone, as it was run."""
    words = ["gradconform", "replay", result.check, str(report.target["text"])]
    words += [] if result.device == "cpu" else ["--device", result.device]
    words += [] if result.dtype == "float32" else ["--dtype", result.dtype]
    words += [] if report.seed == DEFAULT_SEED else ["--seed", str(report.seed)]
    return shlex.join(words)


def can_be_replayed(report: Report) -> bool:
    """Tell whether the results are of checks of the contract: schedules of one's own are run again as they were."""
    return not report.beside
