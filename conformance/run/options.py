"""The options of a run, in one list that every way of starting a run uses.

The command ``gradconform run``, pytest's ``--gradconform-…``, :func:`gradconform.check_stage_backward`, the header of a
run's records and its report all use the fields of :class:`RunOptions`. So do ``--resume``, ``replay`` and worker
processes. The options of every run are fields of :class:`CoreOptions`; a source of checks adds its own. Nothing here
imports torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from gradconform.contract.frozen import version_named
from gradconform.contract.shard import Shard
from gradconform.devices.flags import flags_named
from gradconform.user_input.option import Option, OptionValues, names_of, path_of, values_class
from gradconform.user_input.values import (
    Profile,
    count_named,
    count_read,
    percentage_named,
    profile_named,
    seed_named,
    seed_read,
)

from .sources import all_options

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
class CoreOptions(OptionValues):
    """The options of ``gradconform run``; those of sources of checks are fields of :data:`RunOptions` alone.

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
    max_crashes: int = _option("max_crashes", changes="plan", read=count_read, check=count_named("max_crashes"))
    with_contract: bool = _option("with_contract")
    shard: Shard | None = _option(  # noqa: RUF009 (it returns a field)
        "shard", changes="plan", read=Shard.parse, check=_shard, written=_shard_written
    )
    waivers: str | None = _option("waivers", changes="verdict", check=path_of)

    @property
    def replaces_the_contract(self) -> bool:
        """Whether an option selects checks of a source, which replace the contract."""
        return any(getattr(self, name) for name, option in self.OPTIONS.items() if option.selects)


#: Every option by the name of its field, in the order in which help shows them.
OPTIONS: Mapping[str, Option] = _ALL | {
    one.name: replace(_ALL[one.name], **one.metadata) for one in fields(CoreOptions)
}

if TYPE_CHECKING:

    class RunOptions(CoreOptions):
        """The options of every run, and those of all sources of checks, each by its name."""

else:
    RunOptions = values_class("RunOptions", CoreOptions.__doc__, OPTIONS, base=CoreOptions)


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
