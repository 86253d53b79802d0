"""Python objects that a user names: ``package.module[:object]`` or ``path/to/file.py[:object]``, imported and found."""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from gradconform.adapter import NotInstalledError
from gradconform.exits import EXIT_ENVIRONMENT, UsageError
from gradconform.given_files import is_file
from gradconform.process.forks import OneProcess
from gradconform.process.interrupts import interrupts_seen, pass_on_an_interrupt
from gradconform.torch_releases.names import UnavailableError


class TargetError(UsageError):
    """A target, or anything else that is named so, that cannot be found, imported or driven."""


class TargetNotInstalledError(TargetError):
    """A registered target whose implementation is not installed: a matter of the environment, not of usage."""

    exit_code = EXIT_ENVIRONMENT


@dataclass(frozen=True, slots=True)
class Named:
    """Where an object is to be found, and how messages speak of it.

    ``where`` is a module or a file, with or without an object; ``text`` is what the user wrote, which may be one of the
    ``known`` names, and ``word`` what it names.
    """

    where: str
    text: str
    known: Iterable[str] = ()
    word: str = "target"

    @property
    def told(self) -> str:
        """How a message begins that is about it."""
        return f"{self.word} {self.text!r}"


def load(named: Named) -> tuple[object, ModuleType]:
    """Return the object that ``named`` says where to find, and its module; the module itself where it names no object.

    Raises :class:`TargetError` that speaks of the nearest names there are.
    """
    where, _, attribute = _split(named.where)
    module = _load_file(where, named) if where.endswith(".py") else _import(where, named)
    return (_attribute(module, attribute, where, named) if attribute else module), module


def _split(text: str) -> tuple[str, str, str]:
    head, colon, tail = text.rpartition(":")
    # C:\stage.py has a colon that starts no attribute.
    return (head, colon, tail) if colon and tail.replace(".", "").isidentifier() else (text, "", "")


def _import(name: str, named: Named) -> ModuleType:
    try:
        with interrupts_seen(), OneProcess():
            return importlib.import_module(name)
    except (NotInstalledError, UnavailableError) as error:
        msg = f"{named.told} is unsupported here: {error}"
        raise TargetNotInstalledError(msg) from error
    except ModuleNotFoundError as error:
        missing = error.name or name
        if not (name == missing or name.startswith(f"{missing}.")):
            msg = f"{named.told} could not be imported: it needs {missing!r}, which is not installed"
            raise TargetError(msg) from error
        raise TargetError(_unknown(missing, named)) from error
    except BaseException as error:  # a script that ends the process would end this one with its exit code
        pass_on_an_interrupt(error)
        msg = f"{named.told} could not be imported: {type(error).__name__}: {error}"
        raise TargetError(msg) from error


def _unknown(missing: str, named: Named) -> str:
    """Return what is said of a name that is no module's."""
    forms = "package.module[:object] or path/to/file.py[:object]"
    known = list(named.known)
    if not known:
        return f"{named.told}: no module {missing!r} can be imported. Expected {forms}"
    near = difflib.get_close_matches(named.text, known, n=3, cutoff=0.4)
    hint = f"; nearest registered names: {', '.join(near)}" if near else f"; registered names: {', '.join(known)}"
    return (
        f"{named.told} is no registered name and no module {missing!r} can be imported{hint}. "
        f"Expected a registered name, {forms}"
    )


def _load_file(where: str, named: Named) -> ModuleType:
    path = Path(where).resolve()
    if not is_file(path):
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.py")], n=3)
        hint = f"; files near it: {', '.join(near)}" if near else ""
        msg = f"{named.told}: there is no file {where!r}{hint}"
        raise TargetError(msg)
    name = f"gradconform_target_{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        msg = f"{named.told}: {where!r} cannot be loaded as Python"
        raise TargetError(msg)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        with interrupts_seen(), OneProcess():
            spec.loader.exec_module(module)
    except BaseException as error:  # a script that ends the process would end this one with its exit code
        pass_on_an_interrupt(error)
        sys.modules.pop(name, None)
        msg = f"{named.told} could not be loaded: {type(error).__name__}: {error}"
        raise TargetError(msg) from error
    finally:
        sys.path.remove(str(path.parent))
    return module


def _attribute(module: ModuleType, attribute: str, where: str, named: Named) -> object:
    try:
        return functools.reduce(getattr, attribute.split("."), cast("Any", module))
    except AttributeError as error:
        near = difflib.get_close_matches(attribute, [name for name in vars(module) if not name.startswith("__")], n=3)
        hint = f"; nearest names: {', '.join(near)}" if near else ""
        msg = f"{named.told}: {where} has no {attribute!r}{hint}"
        raise TargetError(msg) from error
