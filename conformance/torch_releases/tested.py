"""The torch releases that this kit was run on, and the warning for any other. Does not import torch."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

#: By minor release; docs/torch-versions.md lists the features of each.
TESTED = ("2.6", "2.7", "2.8", "2.9", "2.10", "2.11", "2.12", "2.13", "2.14", "2.15")


def untested(torch: str) -> str:
    """Return a warning that the kit was not tested with the version ``torch``; empty if it was.

    The text after a ``+`` names a build and not a release; a build from between two releases counts as untested.
    """
    first, last = TESTED[0], TESTED[-1]
    try:
        version = Version(torch)
    except InvalidVersion:  # for example, "not installed"
        return ""
    minor = f"{version.major}.{version.minor}"
    if version.is_prerelease or version.is_devrelease:
        return f"torch {torch} is not a release: gradconform was tested on torch {first} to {last}"
    if minor in TESTED:
        return ""
    if version > Version(last):
        return f"torch {torch} is too new: gradconform was tested on torch {first} to {last}"
    if version < Version(first):
        return f"torch {torch} is too old: gradconform was tested on torch {first} to {last}"
    return f"torch {torch} was not tested: gradconform was tested on torch {', '.join(TESTED)}"
