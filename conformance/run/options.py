"""The options of a run, in one list that every way of starting a run uses.

The command ``gradconform run``, pytest's ``--gradconform-…``, :func:`gradconform.check_stage_backward`, the header of a
run's records and its report all use the fields of :class:`RunOptions`. So do ``--resume``, ``replay`` and worker
processes. The options of every run are fields of :class:`CoreOptions`; a source of checks adds its own. Nothing here
imports torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, make_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from gradconform.contract.frozen import version_named
from gradconform.contract.shard import Shard
from gradconform.devices.flags import flags_named
from gradconform.user_input.option import Changes, Option, names_of, path_of
from gradconform.user_input.values import (
    Profile,
    SelectionError,
    count_read,
    max_crashes_named,
    nearest,
    percentage_named,
    profile_named,
    seed_named,
    seed_read,
)

from .sources import SOURCES, all_options

if TYPE_CHECKING:
    from typing_extensions import Self

_F = TypeVar("_F", bound=Callable[..., Any])


def _flags(given: Mapping[str, str] | Iterable[str] | str) -> tuple[str, ...]:
    flags = flags_named(given if isinstance(given, Mapping) else names_of(given))
    return tuple(f"{name}={value}" for name, value in flags.items())


def _shard(given: Any) -> Shard | None:
    return given if isinstance(given, Shard) else Shard.parse(str(given))


def _shard_written(shard: Shard | None) -> str | None:
    return None if shard is None else str(shard)


_ALL = all_options()


def _option(name: str, **conversions: Any) -> Any:
    """Return the field of an option that has help, with its conversions."""
    return field(default=_ALL[name].default, metadata=conversions)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreOptions:
    """The options of every run, checked at creation from any source; None means the default.

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
    with_contract: bool = _option("with_contract")
    shard: Shard | None = _option(  # noqa: RUF009 (it returns a field)
        "shard", changes="plan", read=Shard.parse, check=_shard, written=_shard_written
    )
    waivers: str | None = _option("waivers", changes="verdict", check=path_of)

    def __post_init__(self) -> None:
        """Check every value, and store it in one form."""
        for name, option in OPTIONS.items():
            given = getattr(self, name)
            object.__setattr__(self, name, option.default if given is None else option.check(given))

    @classmethod
    def of(cls, target: object, **given: Any) -> Self:
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

    def but(self, **given: Any) -> Self:
        """Return these options with the given values replaced."""
        return replace(self, **given)

    def to_json(self) -> dict[str, Any]:
        """Return every option by name as JSON values, for records, reports and other processes.

        A target that is an object has no name by which another process could find it: it is None.
        """
        return {name: option.written(getattr(self, name)) for name, option in OPTIONS.items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
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

    @property
    def replaces_the_contract(self) -> bool:
        """Whether an option selects checks of a source, which replace the contract."""
        return any(getattr(self, option.name) for option in OPTIONS.values() if option.selects)

    def naming_files(self) -> Iterator[object]:
        """Yield the values that name a file which the run loads, or an object in one."""
        for option in OPTIONS.values():
            if option.loads_files:
                given = getattr(self, option.name)
                yield from given if isinstance(given, tuple) else [given]

    def words(self, changes: Changes) -> list[str]:
        """Return the command-line words for those options of one kind that are not the default."""
        found = ((option, getattr(self, name)) for name, option in OPTIONS.items() if name != "target")
        reported = [(option, value) for option, value in found if option.changes == changes and value != option.default]
        return [word for option, value in reported for word in option.words(value)]


#: Every option by the name of its field, in the order in which help shows them.
OPTIONS: Mapping[str, Option] = _ALL | {
    one.name: replace(_ALL[one.name], **one.metadata) for one in fields(CoreOptions)
}

if TYPE_CHECKING:

    class RunOptions(CoreOptions):
        """The options of every run, and those of all sources of checks, each by its name."""

        def __init__(self, **given: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...  # noqa: D105 (the class says it)

else:
    RunOptions = make_dataclass(
        "RunOptions",
        [(one.name, Any, field(default=one.default)) for source in SOURCES.values() for one in source.options],
        bases=(CoreOptions,),
        namespace={
            "__doc__": "The options of every run, and those of all sources of checks, each by its name.",
            "__module__": __name__,
        },
        frozen=True,
        slots=True,
        kw_only=True,
    )


def accepts_run_options(*, unset: bool = False) -> Callable[[_F], _F]:
    """Give a function that takes ``target`` and ``**options`` the signature with every option of a run.

    Each has its default, or None if ``unset``, for a function where other places may set an option.
    """

    def signed(function: _F) -> _F:
        target, *others = OPTIONS.values()
        first = inspect.signature(function).parameters[target.name]
        kind = inspect.Parameter.KEYWORD_ONLY
        rest = (inspect.Parameter(one.name, kind, default=None if unset else one.default) for one in others)
        vars(function)["__signature__"] = inspect.Signature(
            [first, *rest], return_annotation=inspect.signature(function).return_annotation
        )
        return function

    return signed
