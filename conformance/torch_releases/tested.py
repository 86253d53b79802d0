"""Which releases of torch this kit was run on, and what is said of any other. Imports no torch."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

#: By minor release; docs/torch-versions.md has what each of them can do.
TESTED = ("2.6", "2.7", "2.8", "2.9", "2.10", "2.11", "2.12", "2.13", "2.14", "2.15")


def untested(torch: str) -> str:
    """Say in one sentence that the kit was not tested with ``torch``, a version; nothing where it was.

    What stands behind a ``+`` names a build and not a release; a build from between two releases is neither.
    """
    first, last = TESTED[0], TESTED[-1]
    try:
        version = Version(torch)
    except InvalidVersion:  # "not installed", say
        return ""
    minor = f"{version.major}.{version.minor}"
    if version.is_prerelease or version.is_devrelease:
        return f"torch {torch} is no release: gradconform was tested on torch {first} to {last}"
    if minor in TESTED:
        return ""
    if version > Version(last):
        return f"torch {torch} is newer than any that gradconform was tested on, which were torch {first} to {last}"
    if version < Version(first):
        return f"torch {torch} is older than any that gradconform was tested on, which were torch {first} to {last}"
    return f"torch {torch} is none of those that gradconform was tested on: {', '.join(TESTED)}"
