"""Imports the Python objects that a user names: ``package.module[:object]`` or ``path/to/file.py[:object]``."""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from gradconform.adapter import NotInstalledError
from gradconform.exits import EXIT_ENVIRONMENT
from gradconform.process.forks import OneProcess
from gradconform.process.interrupts import interrupts_seen, pass_on_an_interrupt
from gradconform.torch_releases.names import UnavailableError

from .lookup import MissingNameError, Named, TargetError, no_module, refuse_missing

#: The folders of Python and of installed packages.
_INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platlib", "purelib"))

#: The folder of the kit itself.
_KIT = str(Path(__file__).parent.parent)


class TargetNotInstalledError(TargetError):
    """A registered target whose implementation is not installed: an error of the environment, not of usage."""

    exit_code = EXIT_ENVIRONMENT


def load(named: Named) -> tuple[object, ModuleType]:
    """Return the object that ``named`` refers to, and its module; without an object, the module itself.

    Raises :class:`TargetError` that names the nearest existing names, and the error of the import if there is one too.
    """
    where, attribute = named.parts
    try:
        refuse_missing(named)
    except MissingNameError as missing:
        try:
            _module(where, named)
        except TargetError as error:
            msg = f"{missing}; importing it raised {_raised(error.__cause__ or error)}"
            raise TargetError(msg) from error
        raise
    module = _module(where, named)
    return (_attribute(module, attribute, where, named) if attribute else module), module


def _module(where: str, named: Named) -> ModuleType:
    return _load_file(where, named) if where.endswith(".py") else _import(where, named)


def _import(name: str, named: Named) -> ModuleType:
    try:
        with interrupts_seen(), OneProcess():
            return importlib.import_module(name)
    except (NotInstalledError, UnavailableError) as error:
        msg = f"{named.description} is unsupported here: {error}"
        raise TargetNotInstalledError(msg) from error
    except ModuleNotFoundError as error:
        missing = error.name or name
        if not (name == missing or name.startswith(f"{missing}.")):
            msg = f"{named.description} could not be imported: it needs {missing!r}, which is not installed; install it"
            raise TargetError(msg) from error
        raise TargetError(no_module(missing, named)) from error
    except BaseException as error:  # a script that exits would end this process with its exit code
        pass_on_an_interrupt(error)
        msg = f"{named.description} could not be imported: {_raised(error)}"
        raise TargetError(msg) from error


def _load_file(where: str, named: Named) -> ModuleType:
    path = Path(where).resolve()
    name = f"gradconform_target_{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        msg = f"{named.description}: Python cannot load {where!r}"
        raise TargetError(msg)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        with interrupts_seen(), OneProcess():
            spec.loader.exec_module(module)
    except BaseException as error:  # a script that exits would end this process with its exit code
        pass_on_an_interrupt(error)
        sys.modules.pop(name, None)
        msg = f"{named.description} could not be loaded: {_raised(error)}"
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
        msg = f"{named.description}: {where} has no {attribute!r}{hint}"
        raise TargetError(msg) from error


def _raised(error: BaseException) -> str:
    """Return the error and its line: the innermost in a user's own file, if there is one."""
    reported = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):  # it names file and line itself
        return reported
    passed = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in passed if not frame.filename.startswith((_KIT, "<frozen"))]
    own = [frame for frame in frames if not frame.filename.startswith(_INSTALLED)] or frames
    return f"{reported} ({own[-1].filename}, line {own[-1].lineno})" if own else reported
