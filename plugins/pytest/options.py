"""A run's options in pytest: from a marker, the command line, the ini file or the environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gradconform.run.options import OPTIONS as RUN_OPTIONS
from gradconform.run.options import RunOptions, accepts_run_options
from gradconform.user_input.values import switch_read

from .option_names import MARKER, OPTIONS, PluginOption


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a session; ``named`` are those on the command line."""

    run: RunOptions
    json: Path | None
    ndjson: Path | None
    named: frozenset[str]


_KEY: pytest.StashKey[Options] = pytest.StashKey()


def options_of(config: pytest.Config) -> Options:
    """Return the options of a session, read at the first call; raises as :func:`read_options`."""
    if _KEY not in config.stash:
        config.stash[_KEY] = read_options(config)
    return config.stash[_KEY]


def read_options(config: pytest.Config) -> Options:
    """Return each option's value from the command line, the ini file, the environment or the default, in this order.

    Raises ``pytest.UsageError`` for a value that cannot be read.
    """
    found = {one.option.name: _value(config, one) for one in OPTIONS}
    named = frozenset(one.option.name for one in OPTIONS if config.getoption(one.ini) is not None)
    _read_paths(config, found, {one.option.name: _folder(config, one) for one in OPTIONS})
    json, ndjson = found.pop("json"), found.pop("ndjson")
    try:
        run = RunOptions(**{name: value for name, value in found.items() if value is not None})
    except ValueError as error:
        msg = f"gradconform: {error}"
        raise pytest.UsageError(msg) from error
    return Options(run=run, json=json, ndjson=ndjson, named=named)


def _value(config: pytest.Config, one: PluginOption) -> Any:
    """Return the value of an option, or None if it is not set."""
    given = config.getoption(one.ini)
    if given is None:
        found = config.getini(one.ini)
        given = found if found not in (None, "", []) else None
    if given is None and os.environ.get(one.variable):
        text = os.environ[one.variable]
        parts = {"several": text.replace(",", " ").split(), "paths": text.split(os.pathsep)}
        given = parts.get(one.option.kind, text)
    several = one.option.kind in {"several", "paths"}
    if isinstance(given, list) and (not several or any(not isinstance(word, str) for word in given)):
        msg = f"{one.ini}: expected {'strings' if several else 'one value'}, got {given!r}"
        raise pytest.UsageError(msg)
    if given is None or isinstance(given, list):
        return given
    try:
        return switch_read(given) if one.option.kind == "switch" else _read(one)(str(given))
    except ValueError as error:
        msg = f"{one.ini}: {error}"
        raise pytest.UsageError(msg) from error


def _read(one: PluginOption) -> Callable[[str], Any]:
    return RUN_OPTIONS[one.option.name].read if one.option.name in RUN_OPTIONS else str


def _folder(config: pytest.Config, one: PluginOption) -> Path:
    """Return the base folder of a relative path: the ini file's, if the ini file sets the path."""
    from_ini = config.getoption(one.ini) is None and config.getini(one.ini)
    return config.rootpath if from_ini else config.invocation_params.dir


def _named_from(name: str, folder: Path, here: Path) -> str:
    """Return an object's name; one without a module has the path of a file in ``folder``."""
    a_path = ".py" in name and not Path(name).is_absolute() and folder != here
    return os.path.relpath(folder / name, here) if a_path else name


def _read_paths(config: pytest.Config, found: dict[str, Any], folders: Mapping[str, Path]) -> None:
    """Resolve relative paths against the folder of the setting that names them."""
    here = config.invocation_params.dir
    for name in ("json", "ndjson"):
        found[name] = None if found[name] is None else folders[name] / found[name]
    for name in ("schedule", "skip_operations"):
        found[name] = [os.path.relpath(folders[name] / path, here) for path in found[name] or ()]
    found["plan"] = None if found["plan"] is None else os.path.relpath(folders["plan"] / found["plan"], here)
    found["target"] = None if found["target"] is None else _named_from(found["target"], folders["target"], here)
    found["stage"] = [_named_from(stage, folders["stage"], here) for stage in found["stage"] or ()]
    found["waivers"] = _waivers(here, found["waivers"], folders["waivers"])


def _waivers(here: Path, given: str | None, folder: Path) -> str | None:
    """Return the waiver file: the named one, none if the name is empty, else the one in the current folder."""
    default = "gradconform-waivers.toml"
    if given is None and (here / default).is_file():
        return default
    return os.path.relpath(folder / given, here) if given else None


def _is_one_file(one: Path, other: Path) -> bool:
    return one == other or ("\0" not in f"{one}{other}" and os.path.realpath(one) == os.path.realpath(other))


def refuse_unwritable(path: Path, records: Path | None) -> None:
    """Raise ``pytest.UsageError`` if ``path`` cannot be written; a new file is removed again.

    ``records`` is the file of ``--gradconform-ndjson``, which the report must not overwrite.
    """
    if records is not None and _is_one_file(path, records):
        msg = f"--gradconform-ndjson and --gradconform-json name the same file, {str(path)!r}; change one path"
        raise pytest.UsageError(msg)
    try:
        existed = path.exists()
        with path.open("a", encoding="utf-8"):
            pass
        if not existed:
            path.unlink()
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        reason = getattr(error, "strerror", None) or error
        msg = f"--gradconform-json: cannot write {str(path)!r}: {reason}; name a file in an existing folder"
        raise pytest.UsageError(msg) from error


@accepts_run_options(unset=True)
def parametrize_checks(target: object = None, **options: Any) -> pytest.MarkDecorator:
    """Run the decorated test once per check of the contract on ``target``, device and dtype.

    The test calls its argument ``check`` to run the check. The call raises an ``AssertionError`` with the kit's message
    for a failure, and skips a check that the target does not claim. Other options are taken from the command line
    (``--gradconform…``), the ini file and the environment. ::

        import gradconform

        @gradconform.parametrize_checks("torch", profile="quick", checks="full.loss.mlp")
        def test_conformance(check):
            check()
    """
    given = {name: value for name, value in {"target": target, **options}.items() if value is not None}
    decorator: pytest.MarkDecorator = getattr(pytest.mark, MARKER).with_args(**given)
    return decorator
