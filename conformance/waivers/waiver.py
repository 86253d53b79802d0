"""One waiver: which failures it expects, where, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from packaging.specifiers import SpecifierSet

from gradconform.results import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Where a waiver holds: globs over the names of adapter, device and dtype, and a range of torch versions."""

    adapter: str = "*"
    torch: str = ""
    device: str = "*"
    dtype: str = "*"

    def holds(self, *, adapter: str, torch: str) -> bool:
        """Tell whether runs of this adapter with this torch are meant; of a version with a tag, the tag is left out."""
        return fnmatchcase(adapter, self.adapter) and SpecifierSet(self.torch).contains(
            torch.partition("+")[0], prereleases=True
        )

    def to_dict(self) -> dict[str, str]:
        """Return what is not everywhere, as the waiver file has it."""
        return {name: value for name, value in asdict(self).items() if value not in {"*", ""}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiver:
    """One entry of a waiver file. ``verdict`` are the kinds of findings that are expected, ``expires`` the last day."""

    check: str
    verdict: tuple[str, ...]
    reason: str
    issue: str
    owner: str
    expires: str
    when: Scope = Scope()

    def covers(self, result: Result) -> bool:
        """Tell whether the entry speaks of the check, the device and the dtype of ``result``."""
        named = ((result.check, self.check), (result.device, self.when.device), (result.dtype, self.when.dtype))
        return all(fnmatchcase(name, pattern) for name, pattern in named)

    def expects(self, result: Result) -> bool:
        """Tell whether all that ``result`` found is of the pinned kinds."""
        return result.status == "failed" and kinds(result) <= set(self.verdict)

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as JSON values."""
        return {**asdict(self), "verdict": list(self.verdict), "when": self.when.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Waiver:
        """Return the entry that :meth:`to_dict` gave."""
        return cls(**{**values, "verdict": tuple(values["verdict"]), "when": Scope(**values["when"])})


def kinds(result: Result) -> set[str]:
    """Return the kinds of all findings of a failure, or its own kind where it has no findings."""
    return {str(finding["kind"]) for finding in result.findings} or {str(result.kind)}
