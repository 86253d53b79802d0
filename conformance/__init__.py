"""gradconform: the conformance kit for stage backward.

Importing it imports neither torch nor hypothesis: public names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gradconform.version import CONTRACT_VERSION, KIT_VERSION

if TYPE_CHECKING:
    from gradconform.adapter import Adapter, Capabilities, Session, StageSpec, UnsupportedError
    from gradconform.matching import GradientMismatchError, assert_matches_autograd
    from gradconform.oracle import Gradients, autograd_gradients
    from gradconform.plugins.parametrize import parametrize_checks
    from gradconform.results import NonConformingError, Report, Result
    from gradconform.schema.reading import ReportError
    from gradconform.session import check_stage_backward

__version__ = KIT_VERSION

_HOME = {
    "Adapter": "gradconform.adapter",
    "Capabilities": "gradconform.adapter",
    "GradientMismatchError": "gradconform.matching",
    "Gradients": "gradconform.oracle",
    "NonConformingError": "gradconform.results",
    "Report": "gradconform.results",
    "ReportError": "gradconform.schema.reading",
    "Result": "gradconform.results",
    "Session": "gradconform.adapter",
    "StageSpec": "gradconform.adapter",
    "UnsupportedError": "gradconform.adapter",
    "assert_matches_autograd": "gradconform.matching",
    "autograd_gradients": "gradconform.oracle",
    "check_stage_backward": "gradconform.session",
    "parametrize_checks": "gradconform.plugins.parametrize",
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
