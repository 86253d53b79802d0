"""The options of a run: the one list of them, from which every way of asking for a run takes them.

The command ``gradconform run``, pytest's ``--gradconform-…``, :func:`gradconform.check_stage_backward`, the head of a
run's records and its report, ``--resume``, ``replay`` and worker processes all go over the fields of
:class:`RunOptions`: a new option is a field there, and what it does. Nothing here imports torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from gradconform.contract.frozen import version_named
from gradconform.contract.shard import Shard
from gradconform.devices.flags import flags_named
from gradconform.naming import (
    DEFAULT_SEED,
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
from gradconform.version import CONTRACT_VERSION

#: ``several`` are names, which commas may separate; ``paths`` are files, in whose names a comma is one.
Kind = Literal["text", "several", "paths", "switch"]

#: What an option changes: what is found out of a check, which checks run, or what is made of their results.
Changes = Literal["results", "plan", "verdict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option under all its names. ``read`` takes what is typed, ``check`` what is given in any way.

    ``check`` returns the value as :class:`RunOptions` holds it, and ``written`` that value as JSON has it.
    """

    name: str
    word: str
    help: str
    metavar: str
    default: Any = None
    kind: Kind = "text"
    unset: str = "none"
    changes: Changes = "results"
    read: Callable[[str], Any] = str
    check: Callable[[Any], Any] = lambda given: given
    written: Callable[[Any], Any] = lambda value: list(value) if isinstance(value, tuple) else value

    @property
    def flag(self) -> str:
        """The name on the command line."""
        return self.metavar if self.name == "target" else f"--{self.word}"

    @property
    def shown(self) -> str:
        """The default, as help shows it."""
        if self.kind == "switch":
            return "off"
        return (" ".join(self.default) if isinstance(self.default, tuple) else str(self.default or "")) or self.unset

    def refuse_foreign(self, value: Any) -> None:
        """Raise ``SelectionError`` for a JSON value that is not written of this option, whatever it says."""
        if self.kind in {"several", "paths"}:
            fits, expected = isinstance(value, list) and all(isinstance(one, str) for one in value), "a list of texts"
        else:
            fits, expected = value is None or isinstance(value, (str, int, float)), "a text, a number or none"
        if not fits:
            msg = f"{self.name} is {value!r}; expected {expected}"
            raise SelectionError(msg)

    def words(self, value: Any) -> Iterator[str]:
        """Yield the words of a command line that say ``value``."""
        if self.kind == "switch":
            yield from [self.flag] if value else []
        else:
            told = value if isinstance(value, tuple) else [value]
            yield from [word for one in told if one is not None for word in (self.flag, str(one))]


def _several(given: Any) -> tuple[str, ...]:
    """Return the names of what may be given alone or as a sequence; what is given twice counts once."""
    alone = isinstance(given, str) or not isinstance(given, Iterable)
    return tuple(dict.fromkeys(str(one).removeprefix("torch.") for one in ([given] if alone else given)))


def _flags(given: Mapping[str, str] | Iterable[str] | str) -> tuple[str, ...]:
    flags = flags_named(given if isinstance(given, Mapping) else _several(given))
    return tuple(f"{name}={value}" for name, value in flags.items())


def _objects(given: Any) -> tuple[Any, ...]:
    """Return names or paths, and objects; what is given as an object is kept as it is."""
    alone = isinstance(given, (str, os.PathLike)) or not isinstance(given, Iterable)
    several = [given] if alone else given
    return tuple(dict.fromkeys(os.fspath(one) if isinstance(one, (str, os.PathLike)) else one for one in several))


def _path(given: Any) -> str:
    try:
        return os.fspath(given)  # type: ignore[no-any-return] # a path of bytes is none that anybody gives
    except TypeError as error:
        msg = f"{given!r} is no path; expected the name of a file"
        raise SelectionError(msg) from error


def _paths(given: Any) -> tuple[str, ...]:
    return tuple(map(_path, _objects(given)))


def _shard(given: Any) -> Shard | None:
    return given if isinstance(given, Shard) else Shard.parse(str(given))


def _switch(given: Any) -> bool:
    if not isinstance(given, bool):
        msg = f"{given!r} is neither on nor off; expected True or False"
        raise SelectionError(msg)
    return given


def _option(help: str, metavar: str = "", *, default: Any = None, **rest: Any) -> Any:  # noqa: A002 (as argparse)
    """Return a field with all that is said of its option, but for its name.

    A default that is on or off makes a switch, and a tuple makes an option with several values.
    """
    told: dict[str, Any] = {"default": default, "help": help, "metavar": metavar}
    if isinstance(default, bool):
        told |= {"kind": "switch", "check": _switch}
    elif isinstance(default, tuple):
        told |= {"kind": "several", "check": _several}
    return field(default=default, metadata=told | rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What a run is to do. Whatever it is made from, it is checked when it is made; None stands for the default.

    Devices, dtypes and patterns are held against what there is when the run is made: that takes a look at the devices
    and at the contract.
    """

    target: object = _option(
        "judge TARGET: a registered name, package.module[:object] or path/to/file.py[:object]",
        "TARGET",
        written=lambda target: target if isinstance(target, str) else None,
    )
    device: tuple[str, ...] = _option(
        "where it runs: cpu, cuda, cuda:1, npu:*, any other that torch or a plugin knows, auto, or all",
        "DEVICE",
        default=("cpu",),
    )
    device_plugins: tuple[str, ...] = _option(
        "import MODULE first, which makes a device usable that torch does not know",
        "MODULE",
        default=(),
        word="device-plugin",
    )
    dtype: tuple[str, ...] = _option(
        "float64, float32, bfloat16, float16, or all that a device has", "DTYPE", default=("float32",)
    )
    flags: tuple[str, ...] = _option(
        "set a flag of torch that changes numbers, such as tf32=on or autocast=bfloat16",
        "NAME=VALUE",
        default=(),
        word="flag",
        unset="torch's own",
        check=_flags,
    )
    contract: str = _option(
        "which version of the contract: 'gradconform list --contract VERSION' lists its checks",
        "VERSION",
        default=CONTRACT_VERSION,
        read=version_named,
        check=version_named,
    )
    profile: Profile = _option(  # noqa: RUF009 (it returns a field)
        "how much of the contract: quick, standard or full",
        "PROFILE",
        default="standard",
        changes="plan",
        read=profile_named,
        check=profile_named,
    )
    checks: tuple[str, ...] = _option(
        "only the checks whose id matches", "GLOB", default=(), unset="all", changes="plan"
    )
    exclude_checks: tuple[str, ...] = _option(
        "leave out the checks whose id matches", "GLOB", default=(), changes="plan"
    )
    skip_operations: tuple[str, ...] = _option(
        "leave out the operations that a list names for the device and dtype, in the form of torch's device tests or a "
        "plain one",
        "FILE",
        default=(),
        kind="paths",
        changes="plan",
        check=_paths,
    )
    seed: int = _option("what all values are drawn from", "N", default=DEFAULT_SEED, read=seed_read, check=seed_named)
    strict: bool = _option("let a failed SHOULD decide the verdict as well", default=False, changes="verdict")
    probe: bool = _option("try also what the target does not claim; profile full always does", default=False)
    require_device_execution: float | None = _option(
        "fail a check of which less than PERCENT of the operations ran on the device, 100 for no fall back at all",
        "PERCENT",
        check=percentage_named,
    )
    max_crashes: int = _option(
        "run no more after N checks that ended or hung their process, where checks run in processes of their own",
        "N",
        default=20,
        changes="plan",
        read=count_read,
        check=max_crashes_named,
    )
    schedule: tuple[Any, ...] = _option(
        "judge the pipeline schedule of a CSV file in torch's format, a row per rank, in place of the contract",
        "FILE.csv",
        default=(),
        kind="paths",
        changes="plan",
        check=_objects,
        written=lambda several: [one if isinstance(one, str) else str(one.name) for one in several],
    )
    stage: tuple[Any, ...] = _option(
        "judge TARGET on a stage of yours, named as a target is, in place of the contract",
        "STAGE",
        default=(),
        check=_objects,
        written=lambda several: [one if isinstance(one, str) else str(one.name) for one in several],
    )
    operation: tuple[str, ...] = _option(
        "judge TARGET on stages of one operation of torch each, in place of the contract: a name, a glob, or all",
        "NAME",
        default=(),
    )
    block: tuple[str, ...] = _option(
        "judge TARGET on blocks of models, in place of the contract: a name, a glob, or all; --sizes says how large",
        "NAME",
        default=(),
    )
    sizes: Sizes = _option(  # noqa: RUF009 (it returns a field)
        "up to which size blocks are tried: small (32K values), large (1M) or full (2G, as far as memory goes)",
        "SIZES",
        default="small",
        check=sizes_named,
    )
    setting: tuple[str, ...] = _option(
        "judge TARGET under settings of torch, such as autocast-bfloat16 or deterministic, in place of the contract: a "
        "name, a glob, or all",
        "NAME",
        default=(),
    )
    fault: tuple[str, ...] = _option(
        "see whether faults that the kit knows are found here, in place of the contract: a name, a glob, or all",
        "NAME",
        default=(),
    )
    with_contract: bool = _option("judge the contract too, beside whatever else is named", default=False)
    shard: Shard | None = _option(  # noqa: RUF009 (it returns a field)
        "run part I of N of the plan, such as 1/4; 'gradconform merge' puts the N reports together",
        "I/N",
        unset="all",
        changes="plan",
        read=Shard.parse,
        check=_shard,
        written=lambda shard: None if shard is None else str(shard),
    )
    waivers: str | None = _option(
        "failures that are expected, see 'gradconform waivers --help'",
        "FILE",
        unset="gradconform-waivers.toml, if it is there",
        changes="verdict",
        check=_path,
    )

    def __post_init__(self) -> None:
        """Check every value, and hold it in one form whatever form it was given in."""
        for name, option in OPTIONS.items():
            given = getattr(self, name)
            object.__setattr__(self, name, option.default if given is None else option.check(given))

    @classmethod
    def of(cls, target: object, **given: Any) -> RunOptions:
        """Return the options for ``target`` with what is given, in any form that a user may give it in.

        Raises :class:`~gradconform.naming.SelectionError` and :class:`~gradconform.contract.shard.ShardError` (both
        ``ValueError``) for what no run takes, and ``TypeError`` for an option that there is not.
        """
        unknown = next((name for name in given if name not in OPTIONS), None)
        if unknown is not None:
            msg = f"unknown option {unknown!r}; nearest: {nearest(unknown, OPTIONS)}"
            raise TypeError(msg)
        return cls(target=target, **given)

    def but(self, **given: Any) -> RunOptions:
        """Return these options with what is given in place of what they say."""
        return replace(self, **given)

    def to_json(self) -> dict[str, Any]:
        """Return every option by name as JSON values, for records, reports and other processes.

        A target that is an object has no name that another process could find it by: it is None.
        """
        return {name: option.written(getattr(self, name)) for name, option in OPTIONS.items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunOptions:
        """Return the options that :meth:`to_json` wrote.

        Raises ``ValueError`` where one is missing or unknown, or has a value that no run has.
        """
        wrong = sorted({*values} ^ {*OPTIONS})
        if wrong:
            told = ", ".join(f"{name} is {'missing' if name in OPTIONS else 'unknown'}" for name in wrong)
            msg = f"these are not the options of a run of this kit: {told}; expected {', '.join(OPTIONS)}"
            raise SelectionError(msg)
        for name, option in OPTIONS.items():
            option.refuse_foreign(values[name])
        return cls(**values)

    def words(self, changes: Changes) -> list[str]:
        """Return the words of a command line that say those options of one kind that are not the default."""
        found = ((option, getattr(self, name)) for name, option in OPTIONS.items() if name != "target")
        told = [(option, value) for option, value in found if option.changes == changes and value != option.default]
        return [word for option, value in told for word in option.words(value)]


#: Every option by the name of its field, in the order in which help shows them.
OPTIONS: Mapping[str, Option] = {
    one.name: Option(**{"name": one.name, "word": one.name.replace("_", "-"), **one.metadata})
    for one in fields(RunOptions)
}
