"""The options of a run, in one list that every way of starting a run uses.

The command ``gradconform run``, pytest's ``--gradconform-…``, :func:`gradconform.check_stage_backward`, the header of a
run's records and its report all use the fields of :class:`RunOptions`. So do ``--resume``, ``replay`` and worker
processes. A new option is a field there, plus its effect. Nothing here imports torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from gradconform.contract.extra_ids import NONE
from gradconform.contract.frozen import version_named
from gradconform.contract.shard import Shard
from gradconform.devices.flags import flags_named
from gradconform.user_input.option_help import RUN_OPTION_HELP, Kind, OptionHelp
from gradconform.user_input.values import (
    Profile,
    SelectionError,
    Sizes,
    count_read,
    max_crashes_named,
    nearest,
    percentage_named,
    profile_named,
    seed_named,
    seed_read,
    sizes_named,
)

#: The effect of an option: on the findings of a check, on the selected checks, or on the use of their results.
Changes = Literal["results", "plan", "verdict"]


@dataclass(frozen=True, kw_only=True)
class Option(OptionHelp):
    """One option and its conversions. ``read`` takes the typed text, ``check`` a value in any form.

    ``check`` returns the value as :class:`RunOptions` holds it, and ``written`` that value as JSON has it.
    """

    changes: Changes = "results"
    read: Callable[[str], Any] = str
    check: Callable[[Any], Any]
    written: Callable[[Any], Any] = lambda value: list(value) if isinstance(value, tuple) else value

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


def _several(given: Any) -> tuple[str, ...]:
    """Return the names from a single one or a sequence; duplicates count once."""
    alone = isinstance(given, str) or not isinstance(given, Iterable)
    return tuple(dict.fromkeys(str(one).removeprefix("torch.") for one in ([given] if alone else given)))


def _flags(given: Mapping[str, str] | Iterable[str] | str) -> tuple[str, ...]:
    flags = flags_named(given if isinstance(given, Mapping) else _several(given))
    return tuple(f"{name}={value}" for name, value in flags.items())


def _objects(given: Any) -> tuple[Any, ...]:
    """Return names or paths, and objects; an object is stored unchanged."""
    alone = isinstance(given, (str, os.PathLike)) or not isinstance(given, Iterable)
    several = [given] if alone else given
    return tuple(dict.fromkeys(os.fspath(one) if isinstance(one, (str, os.PathLike)) else one for one in several))


def _names(several: Any) -> list[str]:
    return [one if isinstance(one, str) else str(one.name) for one in several]


def _path(given: Any) -> str:
    try:
        return os.fspath(given)  # type: ignore[no-any-return] # no caller passes a path of bytes
    except TypeError as error:
        msg = f"expected the path of a file, got {given!r}"
        raise SelectionError(msg) from error


def _paths(given: Any) -> tuple[str, ...]:
    return tuple(map(_path, _objects(given)))


def _shard(given: Any) -> Shard | None:
    return given if isinstance(given, Shard) else Shard.parse(str(given))


def _shard_written(shard: Shard | None) -> str | None:
    return None if shard is None else str(shard)


def _switch(given: Any) -> bool:
    if not isinstance(given, bool):
        msg = f"expected True or False, got {given!r}"
        raise SelectionError(msg)
    return given


def _faults(given: Any) -> tuple[str, ...]:
    """Return the names of faults; ``none`` alone means no faults."""
    names = _several(given)
    return () if names == (NONE,) else names


_CHECKS: Mapping[Kind, Callable[[Any], Any]] = {"several": _several, "paths": _paths, "switch": _switch}


def _option(name: str, **done: Any) -> Any:
    """Return the field of an option that has words, with its conversions."""
    words = RUN_OPTION_HELP[name]
    return field(default=words.default, metadata={"check": _CHECKS.get(words.kind, _as_it_is)} | done)


def _as_it_is(given: Any) -> Any:
    return given


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a run, checked at creation from any source; None means the default.

    Devices, dtypes and patterns are checked when the run is created, because that needs the devices and the contract.
    """

    target: object = _option("target", written=lambda target: target if isinstance(target, str) else None)
    device: tuple[str, ...] = _option("device")
    device_plugins: tuple[str, ...] = _option("device_plugins")
    dtype: tuple[str, ...] = _option("dtype")
    flags: tuple[str, ...] = _option("flags", check=_flags)
    contract: str = _option("contract", read=version_named, check=version_named)
    profile: Profile = _option(  # noqa: RUF009 (it returns a field)
        "profile", changes="plan", read=profile_named, check=profile_named
    )
    checks: tuple[str, ...] = _option("checks", changes="plan")
    exclude_checks: tuple[str, ...] = _option("exclude_checks", changes="plan")
    skip_operations: tuple[str, ...] = _option("skip_operations", changes="plan")
    seed: int = _option("seed", read=seed_read, check=seed_named)
    strict: bool = _option("strict", changes="verdict")
    probe: bool = _option("probe")
    require_device_execution: float | None = _option("require_device_execution", check=percentage_named)
    max_crashes: int = _option("max_crashes", changes="plan", read=count_read, check=max_crashes_named)
    schedule: tuple[Any, ...] = _option("schedule", changes="plan", check=_objects, written=_names)
    stage: tuple[Any, ...] = _option("stage", check=_objects, written=_names)
    operation: tuple[str, ...] = _option("operation")
    oracle: tuple[str, ...] = _option("oracle")
    block: tuple[str, ...] = _option("block")
    sizes: Sizes = _option("sizes", check=sizes_named)  # noqa: RUF009 (it returns a field)
    setting: tuple[str, ...] = _option("setting")
    fault: tuple[str, ...] = _option("fault", check=_faults)
    with_contract: bool = _option("with_contract")
    shard: Shard | None = _option(  # noqa: RUF009 (it returns a field)
        "shard", changes="plan", read=Shard.parse, check=_shard, written=_shard_written
    )
    plan: str | None = _option("plan", changes="plan", check=_path)
    waivers: str | None = _option("waivers", changes="verdict", check=_path)

    def __post_init__(self) -> None:
        """Check every value, and store it in one form."""
        for name, option in OPTIONS.items():
            given = getattr(self, name)
            object.__setattr__(self, name, option.default if given is None else option.check(given))

    @classmethod
    def of(cls, target: object, **given: Any) -> RunOptions:
        """Return the options for ``target`` with the given values, in any form that a user may use.

        Raises :class:`~gradconform.user_input.values.SelectionError` and
        :class:`~gradconform.contract.shard.ShardError` (both ``ValueError``) for an invalid value, and ``TypeError``
        for an unknown option.
        """
        unknown = next((name for name in given if name not in OPTIONS), None)
        if unknown is not None:
            msg = f"unknown option {unknown!r}; nearest: {nearest(unknown, OPTIONS)}"
            raise TypeError(msg)
        return cls(target=target, **given)

    def but(self, **given: Any) -> RunOptions:
        """Return these options with the given values replaced."""
        return replace(self, **given)

    def to_json(self) -> dict[str, Any]:
        """Return every option by name as JSON values, for records, reports and other processes.

        A target that is an object has no name by which another process could find it: it is None.
        """
        return {name: option.written(getattr(self, name)) for name, option in OPTIONS.items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunOptions:
        """Return the options that :meth:`to_json` wrote.

        Raises ``ValueError`` if one is missing or unknown, or has an invalid value.
        """
        wrong = sorted({*values} ^ {*OPTIONS})
        if wrong:
            wrong_names = ", ".join(f"{name} is {'missing' if name in OPTIONS else 'unknown'}" for name in wrong)
            known = ", ".join(OPTIONS)
            msg = f"the options of the run do not fit this version of gradconform: {wrong_names}; expected {known}"
            raise SelectionError(msg)
        for name, option in OPTIONS.items():
            option.refuse_foreign(values[name])
        return cls(**values)

    def words(self, changes: Changes) -> list[str]:
        """Return the command-line words for those options of one kind that are not the default."""
        found = ((option, getattr(self, name)) for name, option in OPTIONS.items() if name != "target")
        reported = [(option, value) for option, value in found if option.changes == changes and value != option.default]
        return [word for option, value in reported for word in option.words(value)]


#: Every option by the name of its field, in the order in which help shows them.
OPTIONS: Mapping[str, Option] = {
    one.name: Option(**asdict(RUN_OPTION_HELP[one.name]), **one.metadata) for one in fields(RunOptions)
}
