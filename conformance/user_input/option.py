"""An option of a run: its names and help, and the conversions of its values. Nothing here imports torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .values import SelectionError

#: ``several`` are names, which commas may separate; ``paths`` are files, whose names may contain a comma.
Kind = Literal["text", "several", "paths", "switch"]

#: The effect of an option: on the findings of a check, on the selected checks, or on the use of their results.
Changes = Literal["results", "plan", "verdict"]


def names_of(given: Any) -> tuple[str, ...]:
    """Return the names from a single one or a sequence; duplicates count once."""
    alone = isinstance(given, str) or not isinstance(given, Iterable)
    return tuple(dict.fromkeys(str(one).removeprefix("torch.") for one in ([given] if alone else given)))


def objects_of(given: Any) -> tuple[Any, ...]:
    """Return names or paths, and objects; an object is stored unchanged."""
    alone = isinstance(given, (str, os.PathLike)) or not isinstance(given, Iterable)
    several = [given] if alone else given
    return tuple(dict.fromkeys(os.fspath(one) if isinstance(one, (str, os.PathLike)) else one for one in several))


def names_written(several: Any) -> list[str]:
    """Return the names of what :func:`objects_of` returned, as JSON has them."""
    return [one if isinstance(one, str) else str(one.name) for one in several]


def path_of(given: Any) -> str:
    """Return a path as text; raise :class:`~gradconform.user_input.values.SelectionError` for anything else."""
    try:
        return os.fspath(given)  # type: ignore[no-any-return] # no caller passes a path of bytes
    except TypeError as error:
        msg = f"expected the path of a file, got {given!r}"
        raise SelectionError(msg) from error


def _paths_of(given: Any) -> tuple[str, ...]:
    return tuple(map(path_of, objects_of(given)))


def _switch_of(given: Any) -> bool:
    if not isinstance(given, bool):
        msg = f"expected True or False, got {given!r}"
        raise SelectionError(msg)
    return given


def _unchanged(given: Any) -> Any:
    return given


_CHECKS: Mapping[Kind, Callable[[Any], Any]] = {
    "text": _unchanged,
    "several": names_of,
    "paths": _paths_of,
    "switch": _switch_of,
}


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option under its names, and its conversions.

    ``unset`` describes an empty default. ``read`` takes the typed text, ``check`` a value in any form: it returns the
    value as the options of a run hold it, and ``written`` that value as JSON has it. ``selects`` says that the option
    selects checks that replace the contract, and ``loads_files`` that a value may name a file
    which the run loads, or an object in one. ``on_devices`` is the default and the help of ``gradconform device``, if
    that command has the option with a default of its own.
    """

    name: str
    help: str
    metavar: str = ""
    default: Any = None
    kind: Kind = "text"
    unset: str = "none"
    word: str = ""
    changes: Changes = "results"
    read: Callable[[str], Any] = str
    check: Callable[[Any], Any] = _unchanged
    written: Callable[[Any], Any] = lambda value: list(value) if isinstance(value, tuple) else value
    selects: bool = False
    loads_files: bool = False
    on_devices: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        """Derive the command-line name from the name, and the conversion from the kind, if none is set."""
        object.__setattr__(self, "word", self.word or self.name.replace("_", "-"))
        if self.check is _unchanged:
            object.__setattr__(self, "check", _CHECKS[self.kind])

    @property
    def flag(self) -> str:
        """The name on the command line."""
        return self.metavar if self.name == "target" else f"--{self.word}"

    @property
    def shown(self) -> str:
        """The default as shown in help."""
        if self.kind == "switch":
            return "off"
        return (" ".join(self.default) if isinstance(self.default, tuple) else str(self.default or "")) or self.unset

    def refuse_foreign(self, value: Any) -> None:
        """Raise ``SelectionError`` for a JSON value that this option never writes, whatever its content."""
        if self.kind in {"several", "paths"}:
            fits, expected = isinstance(value, list) and all(isinstance(one, str) for one in value), "a list of strings"
        else:
            fits, expected = value is None or isinstance(value, (str, int, float)), "a string, a number or null"
        if not fits:
            msg = f"{self.name}: expected {expected}, got {value!r}"
            raise SelectionError(msg)

    def words(self, value: Any) -> Iterator[str]:
        """Yield the command-line words for ``value``."""
        if self.kind == "switch":
            yield from [self.flag] if value else []
        else:
            reported = value if isinstance(value, tuple) else [value]
            yield from [word for one in reported if one is not None for word in (self.flag, str(one))]
