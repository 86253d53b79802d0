"""The contract: the checks of each version, one module per area. Importing this imports no torch and no check."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from gradconform.process.imports import imports_uncollected
from gradconform.version import CONTRACT_VERSION

from .frozen import frozen as file_contents
from .frozen import older, version_named

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .check import Check


@lru_cache(maxsize=8)
def checks_of(version: str = CONTRACT_VERSION) -> Mapping[str, Check]:
    """Return the checks of a version by id, sorted; in an older version, the profile of each is that of its file.

    The first call takes a second: it generates random stages and runs a backward on some. A device that torch must know
    has to be ready before it. Raises :class:`~gradconform.user_input.values.SelectionError` for an unknown version.
    """
    with imports_uncollected():
        from .areas import CHECKS  # noqa: PLC0415 (it imports torch, and takes as long as said above)

    known = version_named(version)
    checks = {name: check for name, check in CHECKS.items() if _holds(known, check)}
    held = None if known == CONTRACT_VERSION else file_contents(known)
    if held is None:
        return checks
    profiles = {name: one.profile for name, one in held.checks.items()}
    return {name: replace(check, profile=profiles.get(name, check.profile)) for name, check in checks.items()}


def _holds(version: str, check: Check) -> bool:
    """Return whether a version has a check: ``since`` has passed, and ``until`` has not."""
    return not older(version, check.since) and (check.until is None or older(version, check.until))
