"""gradconform: the conformance kit for stage backward.

Importing it imports neither torch nor hypothesis: public names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .version import CONTRACT_VERSION, KIT_VERSION

if TYPE_CHECKING:
    from gradconform.drive.own_stage import Gradients, autograd_gradients
    from gradconform.judge.matching import GradientMismatchError, assert_matches_autograd
    from gradconform.plugins.pytest.options import parametrize_checks
    from gradconform.reading.report import ReportError, read_report
    from gradconform.run.run import check_stage_backward

    from .adapter import Adapter, Capabilities, Session, StageSpec, UnsupportedError
    from .results import NonConformingError, Report, Result

__version__ = KIT_VERSION

_HOME = {
    "Adapter": "gradconform.adapter",
    "Capabilities": "gradconform.adapter",
    "GradientMismatchError": "gradconform.judge.matching",
    "Gradients": "gradconform.drive.own_stage",
    "NonConformingError": "gradconform.results",
    "Report": "gradconform.results",
    "ReportError": "gradconform.reading.report",
    "Result": "gradconform.results",
    "Session": "gradconform.adapter",
    "StageSpec": "gradconform.adapter",
    "UnsupportedError": "gradconform.adapter",
    "assert_matches_autograd": "gradconform.judge.matching",
    "autograd_gradients": "gradconform.drive.own_stage",
    "check_stage_backward": "gradconform.run.run",
    "parametrize_checks": "gradconform.plugins.pytest.options",
    "read_report": "gradconform.reading.report",
}

__all__ = [
    "CONTRACT_VERSION",
    "KIT_VERSION",
    "Adapter",
    "Capabilities",
    "GradientMismatchError",
    "Gradients",
    "NonConformingError",
    "Report",
    "ReportError",
    "Result",
    "Session",
    "StageSpec",
    "UnsupportedError",
    "assert_matches_autograd",
    "autograd_gradients",
    "check_stage_backward",
    "parametrize_checks",
    "read_report",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used (PEP 562)."""
    if name not in _HOME:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})
