"""An option of a run: its names and help, and the conversions of its values. Nothing here imports torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, make_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .values import SelectionError, nearest

if TYPE_CHECKING:
    from typing_extensions import Self

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


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionValues:
    """The options of one command, a field each, checked at creation from any source; None means the default."""

    #: The name of the command in a report, empty for ``gradconform run``.
    COMMAND: ClassVar[str] = ""
    #: Every option by the name of its field, in the order in which help shows them.
    OPTIONS: ClassVar[Mapping[str, Option]] = {}

    if TYPE_CHECKING:

        def __init__(self, **given: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...  # noqa: D105 (every option has a field)

    def __post_init__(self) -> None:
        """Check every value, and store it in one form."""
        for name, option in self.OPTIONS.items():
            given = getattr(self, name)
            object.__setattr__(self, name, option.default if given is None else option.check(given))

    @classmethod
    def of(cls, target: object, **given: Any) -> Self:
        """Return the options for ``target`` with the given values, in any form that a user may use.

        Raises :class:`~gradconform.user_input.values.SelectionError` and
        :class:`~gradconform.contract.shard.ShardError` (both ``ValueError``) for an invalid value, and ``TypeError``
        for an unknown option.
        """
        unknown = next((name for name in given if name not in cls.OPTIONS), None)
        if unknown is not None:
            msg = f"unknown option {unknown!r}; nearest: {nearest(unknown, cls.OPTIONS)}"
            raise TypeError(msg)
        return cls(target=target, **given)

    def but(self, **given: Any) -> Self:
        """Return these options with the given values replaced."""
        return replace(self, **given)

    def alone(self, check: str) -> Self:
        """Return the options of a run of one check, of a command that takes these options."""
        return self.but(checks=(check,), shard=None, waivers=None)

    def to_json(self) -> dict[str, Any]:
        """Return every option by name as JSON values, for records, reports and other processes.

        A target that is an object has no name by which another process could find it: it is None.
        """
        command = {"command": self.COMMAND} if self.COMMAND else {}
        return {**command, **{name: option.written(getattr(self, name)) for name, option in self.OPTIONS.items()}}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the options that :meth:`to_json` wrote.

        Raises ``ValueError`` if one is missing or unknown, has an invalid value, or is of another command.
        """
        given = {name: value for name, value in values.items() if name != "command"}
        wrong = sorted({*given} ^ {*cls.OPTIONS})
        if values.get("command", "") != cls.COMMAND or wrong:
            of = f"'gradconform {cls.COMMAND}'" if cls.COMMAND else "the run"
            differing = [f"{name} is {'missing' if name in cls.OPTIONS else 'unknown'}" for name in wrong]
            differing = differing or [f"they are of {values.get('command')!r}"]
            msg = (
                f"the options of {of} do not fit this version of gradconform: {', '.join(differing)}; "
                f"expected {', '.join(cls.OPTIONS)}"
            )
            raise SelectionError(msg)
        for name, option in cls.OPTIONS.items():
            option.refuse_foreign(given[name])
        return cls(**given)

    def words(self, *changes: Changes) -> list[str]:
        """Return the command-line words for those options of some kinds, or of all, that are not the default."""
        found = ((option, getattr(self, name)) for name, option in self.OPTIONS.items() if name != "target")
        told = [(option, value) for option, value in found if value != option.default]
        kept = [(option, value) for option, value in told if not changes or option.changes in changes]
        return [word for option, value in kept for word in option.words(value)]

    def naming_files(self) -> Iterator[object]:
        """Yield the values that name a file which the run loads, or an object in one."""
        for name, option in self.OPTIONS.items():
            if option.loads_files:
                given = getattr(self, name)
                yield from given if isinstance(given, tuple) else [given]


def values_class(
    name: str, doc: str, options: Mapping[str, Option], *, command: str = "", base: type[OptionValues] = OptionValues
) -> Any:
    """Return the frozen dataclass of a command's options, with a field for each that ``base`` does not have."""
    own = [one for one in options.values() if one.name not in base.__dataclass_fields__]
    return make_dataclass(
        name,
        [(one.name, Any, field(default=one.default)) for one in own],
        bases=(base,),
        namespace={"__doc__": doc, "COMMAND": command, "OPTIONS": options},
        frozen=True,
        slots=True,
        kw_only=True,
    )
