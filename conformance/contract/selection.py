"""Selection of a version's checks: those of a profile, by globs over ids. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Protocol, TypeVar

from gradconform.user_input.values import PROFILES, Profile, SelectionError, nearest, profile_named


class Selectable(Protocol):
    """An object with a check's id, and its first profile."""

    @property
    def id(self) -> str:
        """Return the id."""

    @property
    def profile(self) -> Profile:
        """Return the first profile that has it."""


_S = TypeVar("_S", bound=Selectable)


def of_profile(checks: Mapping[str, _S], profile: str) -> list[_S]:
    """Return the checks of a profile, which includes the smaller ones; raise for an unknown profile."""
    known = profile_named(profile)
    return [check for check in checks.values() if PROFILES.index(check.profile) <= PROFILES.index(known)]


def selected(
    checks: Mapping[str, _S], profile: str, include: Sequence[str] | None = None, exclude: Sequence[str] = ()
) -> list[_S]:
    """Return the checks of a profile whose id matches ``include``, if it is given, and not ``exclude``.

    Raises :class:`~gradconform.user_input.values.SelectionError` for an unknown profile, a glob that matches nothing,
    and an empty selection.
    """
    manifest = of_profile(checks, profile)
    for pattern in (*(include or ()), *exclude):
        if not any(fnmatchcase(check.id, pattern) for check in manifest):
            raise SelectionError(_no_match(pattern, checks, profile))
    found = [
        check
        for check in manifest
        if (not include or any(fnmatchcase(check.id, pattern) for pattern in include))
        and not any(fnmatchcase(check.id, pattern) for pattern in exclude)
    ]
    if not found:
        msg = f"the selection excludes all {len(manifest)} checks: {include=}, {exclude=}; change one of them"
        raise SelectionError(msg)
    return found


def _no_match(pattern: str, checks: Mapping[str, Selectable], profile: str) -> str:
    """Return advice on a pattern: the profile that has matches, or else similar ids, or else the areas."""
    profiles = {check.profile for check in checks.values() if fnmatchcase(check.id, pattern)}
    if profiles:
        smallest = min(profiles, key=PROFILES.index)
        return f"check pattern {pattern!r} matches no check of profile {profile}; use profile {smallest}"
    areas = dict.fromkeys(name.partition(".")[0] for name in checks)
    part = pattern.strip("*?.")
    if pattern.partition(".")[0] not in areas and not any(part in name for name in checks):
        return f"check pattern {pattern!r} matches no check; the areas are {', '.join(areas)}"
    return f"check pattern {pattern!r} matches no check; nearest: {nearest(pattern, checks)[:300]}"
