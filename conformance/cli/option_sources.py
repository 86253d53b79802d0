"""Options of a run that are set outside the command line: in the environment, and in a file.

The file is ``gradconform.toml``, or the table ``tool.gradconform`` of ``pyproject.toml``, in the current folder. It
sets every option of ``gradconform run`` under its long name, and the target under ``target``. The command line takes
precedence over the environment, and the environment over the file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from gradconform.exits import UsageError
from gradconform.files.user_files import content, is_file
from gradconform.user_input.values import SelectionError, nearest, switch_read

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = "gradconform.toml"
_PROJECT, _TABLE = "pyproject.toml", "tool.gradconform"

#: Options that no file and no variable can set: they are one-time actions.
_ACTS = {"help", "list", "resume", "exitfirst", "last-failed", "quiet", "verbose"}

#: The largest size of a settings file in bytes.
_LARGEST = 2**20


class SettingsError(UsageError):
    """A file or a variable sets an option to an invalid value."""


@dataclass(frozen=True, slots=True)
class _Source:
    """A source of options: its name in messages, and its values by the long name of an option."""

    name: str
    values: Mapping[str, Any]


def fill(
    arguments: argparse.Namespace, parser: argparse.ArgumentParser, folder: Path, variables: Mapping[str, str]
) -> list[str]:
    """Set unset arguments, which are None, and return one line per source that has set any.

    Raises :class:`SettingsError` for an unknown option and for a value that it does not accept.
    """
    actions = {_name(action): action for action in parser._actions}  # noqa: SLF001 (argparse has no public name for it)
    actions = {name: action for name, action in actions.items() if name not in _ACTS}
    excluded = {id(one) for group in parser._mutually_exclusive_groups for one in _given_alternatives(group, arguments)}  # noqa: SLF001 (likewise)
    reported = []
    for source in _sources(actions, folder, variables):
        taken = []
        for name, value in source.values.items():
            action = _known(name, actions, source)
            found = _value(action, name, value, source)
            if getattr(arguments, action.dest) is None and found is not None and id(action) not in excluded:
                setattr(arguments, action.dest, found)
                taken.append(name)
        if taken:
            reported.append(f"options from {source.name}: {', '.join(taken)}")
    return reported


def _name(action: argparse.Action) -> str:
    """Return the long name of an option, as used in a file."""
    longest = max(action.option_strings, key=len, default=action.dest)
    return longest.removeprefix("--")


def _given_alternatives(group: Any, arguments: argparse.Namespace) -> Iterable[argparse.Action]:
    """Return the options of a group from which the command line has named another one."""
    given = [one for one in group._group_actions if getattr(arguments, one.dest) is not None]  # noqa: SLF001 (likewise)
    return [one for one in group._group_actions if given and one not in given]  # noqa: SLF001 (likewise)


def _sources(actions: Iterable[str], folder: Path, variables: Mapping[str, str]) -> Iterator[_Source]:
    """Yield the sources in order of precedence, highest first."""
    named = {name: f"GRADCONFORM_{name.upper().replace('-', '_')}" for name in actions}
    for name, variable in named.items():
        if variables.get(variable):
            yield _Source(variable, {name: variables[variable]})
    own, project = folder / FILE, folder / _PROJECT
    if is_file(own):
        yield _Source(FILE, _read(own))
    elif is_file(project):
        table = _read(project).get("tool", {})
        values = table.get("gradconform", {}) if isinstance(table, dict) else {}
        if not isinstance(values, dict):
            msg = f"{_PROJECT}: {_TABLE}: expected a table of options, got {values!r}"
            raise SettingsError(msg)
        yield _Source(f"[{_TABLE}] of {_PROJECT}", values)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(content(path, _LARGEST).decode("utf-8"))
    except OSError as error:
        msg = f"cannot read {path.name}: {error.strerror}"
        raise SettingsError(msg) from error
    except (ValueError, RecursionError) as error:
        msg = f"{path.name} is not valid TOML: {error}"
        raise SettingsError(msg) from error


def _known(name: str, actions: Mapping[str, argparse.Action], source: _Source) -> argparse.Action:
    action = actions.get(name.replace("_", "-"))
    if action is None:
        why = "works on the command line only" if name in _ACTS else "is not an option of 'gradconform run'"
        msg = f"{source.name}: {name!r} {why}; nearest: {nearest(name, actions)[:200]}"
        raise SettingsError(msg)
    return action


def _value(action: argparse.Action, name: str, value: Any, source: _Source) -> Any:
    """Return a value in the command line's form; None for a switch that is off."""
    several = isinstance(action, (argparse._ExtendAction, argparse._AppendAction))  # noqa: SLF001 (likewise)
    if isinstance(value, dict):
        value = [f"{key}={one}" for key, one in value.items()]
    words = value if isinstance(value, list) else [value]
    try:
        if action.nargs == 0:
            return action.const if switch_read(value) else None
        if isinstance(value, bool) or (isinstance(value, list) and not several):
            _refuse(source, name, value, "expected one value")
        if several and not all(isinstance(word, str) for word in words):
            _refuse(source, name, value, "expected strings")
        found = [action.type(str(word)) if callable(action.type) else str(word) for word in words]
    except (argparse.ArgumentTypeError, SelectionError) as error:
        _refuse(source, name, value, str(error))
    return [one for part in found for one in (part if isinstance(part, list) else [part])] if several else found[0]


def _refuse(source: _Source, name: str, value: Any, why: str) -> NoReturn:
    msg = f"{source.name}: {name} = {value!r}: {why}"
    raise SettingsError(msg)
