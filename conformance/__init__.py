"""The public names of gradconform, the conformance kit for stage backward.

The import loads neither torch nor hypothesis: each public name is loaded at its first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .version import CONTRACT_VERSION, KIT_VERSION

if TYPE_CHECKING:
    from gradconform.drive.user_stage import Gradients, autograd_gradients
    from gradconform.judge.matching import GradientMismatchError, assert_matches_autograd
    from gradconform.plugins.pytest.fixture_values import BuiltStage, OutputGrads
    from gradconform.plugins.pytest.options import parametrize_checks
    from gradconform.reading.report import ReportError, read_report
    from gradconform.report.check_failure import CheckFailedError
    from gradconform.run.run import check_stage_backward
    from gradconform.sharded.stage import ShardedStage
    from gradconform.sources.sharded.checks import check_sharded_stage
    from gradconform.target.layer_swap import Swap, swap
    from gradconform.user_input.values import Profile

    from .adapter import Adapter, Capabilities, FullSession, Session, SplitSession, StageSpec, UnsupportedError
    from .devices.names import Dtype, DtypeName
    from .results import NonConformingError, Report, Result, Status, Verdict

__version__ = KIT_VERSION

_HOME = {
    "gradconform.adapter": (
        "Adapter",
        "Capabilities",
        "FullSession",
        "Session",
        "SplitSession",
        "StageSpec",
        "UnsupportedError",
    ),
    "gradconform.devices.names": ("Dtype", "DtypeName"),
    "gradconform.drive.user_stage": ("Gradients", "autograd_gradients"),
    "gradconform.judge.matching": ("GradientMismatchError", "assert_matches_autograd"),
    "gradconform.user_input.values": ("Profile",),
    "gradconform.plugins.pytest.fixture_values": ("BuiltStage", "OutputGrads"),
    "gradconform.plugins.pytest.options": ("parametrize_checks",),
    "gradconform.reading.report": ("ReportError", "read_report"),
    "gradconform.report.check_failure": ("CheckFailedError",),
    "gradconform.results": ("NonConformingError", "Report", "Result", "Status", "Verdict"),
    "gradconform.run.run": ("check_stage_backward",),
    "gradconform.sharded.stage": ("ShardedStage",),
    "gradconform.sources.sharded.checks": ("check_sharded_stage",),
    "gradconform.target.layer_swap": ("Swap", "swap"),
}

__all__ = [
    "CONTRACT_VERSION",
    "KIT_VERSION",
    "Adapter",
    "BuiltStage",
    "Capabilities",
    "CheckFailedError",
    "Dtype",
    "DtypeName",
    "FullSession",
    "GradientMismatchError",
    "Gradients",
    "NonConformingError",
    "OutputGrads",
    "Profile",
    "Report",
    "ReportError",
    "Result",
    "Session",
    "ShardedStage",
    "SplitSession",
    "StageSpec",
    "Status",
    "Swap",
    "UnsupportedError",
    "Verdict",
    "assert_matches_autograd",
    "autograd_gradients",
    "check_sharded_stage",
    "check_stage_backward",
    "parametrize_checks",
    "read_report",
    "swap",
]


def __getattr__(name: str) -> Any:
    """Return a public name, loaded at its first use (PEP 562)."""
    for home, names in _HOME.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return sorted({*globals(), *__all__})
