"""The plugin's options: each on the command line, in the ini file and in the environment, in that order of rank."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from gradconform.shard import Shard, ShardError

Kind = Literal["text", "several", "number", "flag"]


@dataclass(frozen=True, slots=True)
class Option:
    """One option under its three names; ``several`` may be given more than once."""

    name: str
    kind: Kind
    metavar: str
    default: Any
    help: str

    @property
    def flag(self) -> str:
        """The name on the command line."""
        return "--gradconform" if self.name == "target" else f"--gradconform-{self.name.replace('_', '-')}"

    @property
    def ini(self) -> str:
        """The name in the ini file, and of the attribute of ``config.option``."""
        return f"gradconform_{self.name}"

    @property
    def variable(self) -> str:
        """The name of the environment variable."""
        return self.ini.upper()

    @property
    def told(self) -> str:
        """The help text, with the default and the two other names."""
        default = " ".join(self.default) if isinstance(self.default, tuple) else self.default
        shown = {"": "none", None: "none", False: "off"}.get(default, default)
        return f"{self.help} (default: {shown}; ini: {self.ini}; environment: {self.variable})"


OPTIONS = (
    Option(
        "target", "text", "TARGET", None,
        "judge TARGET: a registered name, package.module[:object] or path/to/file.py[:object]",
    ),
    Option("device", "several", "DEVICE", ("cpu",), "run on DEVICE: cpu, cuda:1, npu:*, auto, all, …; repeatable"),
    Option("device_plugin", "several", "MODULE", (), "import MODULE, which makes a device usable; repeatable"),
    Option("dtype", "several", "DTYPE", ("float32",), "run in DTYPE, or in all that a device has; repeatable"),
    Option("flag", "several", "NAME=VALUE", (), "set a flag of torch that changes numbers, as tf32=on; repeatable"),
    Option("profile", "text", "PROFILE", "standard", "how much of the contract runs: quick, standard or full"),
    Option("checks", "several", "GLOB", (), "run only checks whose id matches GLOB; repeatable"),
    Option("exclude_checks", "several", "GLOB", (), "leave out checks whose id matches GLOB; repeatable"),
    Option("seed", "number", "N", 20, "draw parameters, inputs and output gradients from seed N"),
    Option("strict", "flag", "", default=False, help="let a failed SHOULD decide the verdict too"),
    Option(
        "require_device_execution", "text", "PERCENT", None,
        "fail a check of which less than PERCENT of the operations ran on the device",
    ),
    Option("shard", "text", "I/N", None, "run part I of N of the plan, such as 1/4; gradconform merge joins them"),
    Option(
        "waivers", "text", "FILE", None,
        "expect the failures in FILE; where it is not given, those in gradconform-waivers.toml of the current folder",
    ),
    Option("json", "text", "PATH", None, "write the report to PATH as JSON"),
    Option(
        "ndjson", "text", "PATH", None,
        "append each result of --gradconform TARGET to PATH as it comes; gradconform run --resume PATH goes on with it",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a user asked for. ``named`` holds the options that the command line names."""

    target: str | None
    device: tuple[str, ...]
    device_plugin: tuple[str, ...]
    dtype: tuple[str, ...]
    flag: tuple[str, ...]
    profile: str
    checks: tuple[str, ...]
    exclude_checks: tuple[str, ...]
    seed: int
    strict: bool
    require_device_execution: str | None
    shard: Shard | None
    waivers: Path | None
    json: Path | None
    ndjson: Path | None
    named: frozenset[str]


def add_options(parser: pytest.Parser) -> None:
    """Add every option and its ini twin."""
    group = parser.getgroup("gradconform", "conformance of stage backward (gradconform)")
    kinds: dict[Kind, dict[str, Any]] = {
        "text": {},
        "several": {"action": "append"},
        "number": {"type": int},
        "flag": {"action": argparse.BooleanOptionalAction},
    }
    for option in OPTIONS:
        name = {} if option.kind == "flag" else {"metavar": option.metavar}
        # %: argparse formats help texts.
        text = option.told.replace("%", "%%")
        group.addoption(option.flag, dest=option.ini, default=None, help=text, **name, **kinds[option.kind])
        parser.addini(option.ini, option.told, type=_INI_TYPES[option.kind], default=None)


_INI_TYPES: dict[Kind, Any] = {"text": "string", "several": "args", "number": "string", "flag": "bool"}
if pytest.version_tuple >= (8, 4):
    _INI_TYPES["number"] = "int"  # so that native TOML takes a number


def read_options(config: pytest.Config) -> Options:
    """Return what the command line says, else the ini file, else the environment, else the default.

    Raises ``pytest.UsageError`` for a value that cannot be read.
    """
    values = {option.name: _value(config, option) for option in OPTIONS}
    named = frozenset(option.name for option in OPTIONS if config.getoption(option.ini) is not None)
    if values["target"] is not None:
        values["target"] = _target_from(config, values["target"], named)
    if values["shard"] is not None:
        values["shard"] = _shard(values["shard"])
    values["waivers"] = _waivers(config, values["waivers"], named)
    for name in ("json", "ndjson"):
        if values[name] is not None:
            values[name] = _folder(config, name, named) / values[name]
    return Options(**values, named=named)


def _value(config: pytest.Config, option: Option) -> Any:
    given = config.getoption(option.ini)
    if given is None:
        found = config.getini(option.ini)
        given = found if found not in (None, "", []) else None
    if given is None and os.environ.get(option.variable):
        given = os.environ[option.variable]
        given = given.replace(",", " ").split() if option.kind == "several" else given
    if given is None:
        return option.default
    return _READ[option.kind](option, given)


def _number(option: Option, given: object) -> int:
    try:
        return int(str(given))
    except ValueError as error:
        msg = f"{option.ini} = {given!r} is not a whole number; expected one such as {option.default}"
        raise pytest.UsageError(msg) from error


_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _flag(option: Option, given: object) -> bool:
    word = str(given).lower()
    if word not in _WORDS:
        msg = f"{option.ini} = {given!r} is neither on nor off; expected one of {', '.join(_WORDS)}"
        raise pytest.UsageError(msg)
    return _WORDS[word]


_READ: dict[Kind, Callable[[Option, Any], Any]] = {
    "text": lambda _, given: str(given),
    "several": lambda _, given: tuple(given),
    "number": _number,
    "flag": _flag,
}


def _waivers(config: pytest.Config, given: str | None, named: frozenset[str]) -> Path | None:
    """Return the waiver file: the one named, none where the name is empty, else the one in the current folder."""
    default = Path("gradconform-waivers.toml")
    if given is None and (config.invocation_params.dir / default).is_file():
        return default
    if not given:
        return None
    return Path(os.path.relpath(_folder(config, "waivers", named) / given, config.invocation_params.dir))


def _shard(given: str) -> Shard:
    try:
        return Shard.parse(given)
    except ShardError as error:
        msg = f"gradconform_shard = {error}"
        raise pytest.UsageError(msg) from error


def _folder(config: pytest.Config, name: str, named: frozenset[str]) -> Path:
    """Return the folder that a relative path is relative to: the ini file's, where that is what names the path."""
    from_ini = name not in named and config.getini(f"gradconform_{name}")
    return config.rootpath if from_ini else config.invocation_params.dir


def _target_from(config: pytest.Config, target: str, named: frozenset[str]) -> str:
    """Return a target that is a file named in the ini file as a path from the current folder."""
    folder = _folder(config, "target", named)
    if ".py" not in target or Path(target).is_absolute() or folder == config.invocation_params.dir:
        return target
    return os.path.relpath(folder / target, config.invocation_params.dir)


def refuse_unwritable(path: Path) -> None:
    """Raise ``pytest.UsageError`` where ``path`` cannot be written; a file that was not there is not left behind."""
    existed = path.exists()
    try:
        with path.open("a", encoding="utf-8"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        msg = f"--gradconform-json {str(path)!r} cannot be written: {error.strerror}; name a file in an existing folder"
        raise pytest.UsageError(msg) from error
