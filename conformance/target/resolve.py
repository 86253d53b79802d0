"""Resolves a target, as the user names it, to an adapter.

A target is a registered name (``torch``), ``package.module``, ``package.module:object``, ``path/to/file.py``,
``path/to/file.py:object``, or an object. The object is an adapter, an adapter class or factory, or a namespace with
torch's three functions (or ``stage_backward`` alone).
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, cast
from urllib.parse import urlsplit
from urllib.request import url2pathname

from gradconform.adapter import Adapter, Capabilities, claims_of
from gradconform.exits import refusal
from gradconform.files.user_files import is_file
from gradconform.process.forks import OneProcess
from gradconform.process.interrupts import interrupts_seen, pass_on_an_interrupt
from gradconform.process.serving import Orders, Send

from .functions import FULL, SPLIT, FunctionsAdapter, signature_problem
from .loading import load
from .lookup import ENTRY_POINTS, Named, TargetError, registered

_OF_AN_ADAPTER = ("name", "capabilities", "open")

_WANTED = f"an adapter needs {', '.join(_OF_AN_ADAPTER)}; see docs/write-an-adapter.md"

#: The advice for a user who names something else, such as an engine.
_LEADS = "For an engine or another interface, write an adapter: see docs/write-an-adapter.md"

#: How many functions of a module a message lists.
_MOST_NAMES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A resolved target: its adapter, its claims, and its source.

    ``own_adapter`` says that a user wrote its adapter, which must pass a pre-flight first. ``lines`` has the lines of
    ``file`` where its actions are defined, by their letters; an action of another file has none.
    """

    text: str
    adapter: Adapter
    capabilities: Capabilities
    own_adapter: bool
    version: str | None = None
    file: str | None = None
    sha256: str | None = None
    lines: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The adapter's own name."""
        return self.adapter.name

    def described(self) -> dict[str, Any]:
        """Return a report's description of the target, as JSON values."""
        return {
            "text": self.text, "name": self.name, "version": self.version, "file": self.file, "sha256": self.sha256,
            "commit": commit_of(self.file), "lines": dict(self.lines),
        }  # fmt: skip


def registered_targets() -> dict[str, str]:
    """Return the registered names and their objects (entry-point group ``gradconform.adapters``)."""
    return registered(ENTRY_POINTS)


def resolve(target: object, extra: Mapping[str, object] | None = None) -> Target:
    """Return the adapter of ``target``; ``extra`` holds additional registered names.

    Raises :class:`TargetError` with the missing name and the nearest existing names.
    """
    if isinstance(target, Target):
        return target
    if not isinstance(target, str):
        return _from_object(target, getattr(target, "__name__", type(target).__name__))
    known = {**registered_targets(), **(extra or {})}
    named = known.get(target, target)
    if not isinstance(named, str):
        return replace(_from_object(named, target), text=target)
    found, module = load(Named(named, target, known))
    made = _from_object(found, target)
    home = _home(made, module)
    origin = _origin(home)
    lines = _action_lines(made.adapter, home, origin["file"]) if origin["file"] else {}
    return replace(made, text=target, **origin, lines=lines)


def describe_targets(orders: Orders, send: Send) -> None:
    """Resolve targets one by one in a worker process: report the version and file of each, or the error."""
    for name in next(orders)["targets"]:
        try:
            found = resolve(name)
        except Exception as error:  # noqa: BLE001, PERF203 (each error belongs to one target)
            send({"problem": refusal(error)[0]})
        else:
            send({"version": found.version, "file": found.file})


def load_registered(target: str, group: str) -> object:
    """Return the object for a name of an entry-point group, or for an object or a file; a class is called.

    Raises as :func:`~gradconform.target.loading.load` does.
    """
    known = registered(group)
    found, _ = load(Named(known.get(target, target), target, known))
    return found() if isinstance(found, type) else found


def _from_object(found: object, text: str) -> Target:
    if all(hasattr(found, name) for name in _OF_AN_ADAPTER) and not isinstance(found, type):
        return _target(cast("Adapter", found), text, own_adapter=True)
    functions = {name: getattr(found, name) for name in (FULL, *SPLIT) if hasattr(found, name)}
    if functions:
        return _target(_functions_adapter(found, functions, text), text, own_adapter=False)
    if inspect.isfunction(found) and found.__name__ == FULL:
        return _target(_functions_adapter(found, {FULL: found}, text), text, own_adapter=False)
    if isinstance(found, type) or (callable(found) and not isinstance(found, ModuleType)):
        return _from_factory(cast("Callable[[], object]", found), text)
    raise TargetError(_no_target(found, text))


def _no_target(found: object, text: str) -> str:
    """Return the message for an object that is neither functions nor an adapter: its matching or nearest names."""
    kind = "module" if isinstance(found, ModuleType) else type(found).__name__
    there = [name for name in _OF_AN_ADAPTER if hasattr(found, name)]
    if there:
        missing = " and ".join(name for name in _OF_AN_ADAPTER if name not in there)
        return f"target {text!r} ({kind}) has {' and '.join(there)} but no {missing}; {_WANTED}"
    held = getattr(found, "__dict__", {})
    functions = [name for name, one in held.items() if inspect.isfunction(one) and not name.startswith("_")]
    has = f"; it defines {', '.join(functions[:_MOST_NAMES])}" if functions else ""
    return (
        f"target {text!r} ({kind}) has no stage_backward and is not an adapter{has}. Expected torch's three functions, "
        f"stage_backward alone, or an adapter. {_LEADS}"
    )


def _from_factory(factory: Callable[[], object], text: str) -> Target:
    try:
        with interrupts_seen(), OneProcess():
            made = factory()
    except BaseException as error:
        pass_on_an_interrupt(error)
        raise TargetError(_not_made(factory, text, error)) from error
    missing = [name for name in _OF_AN_ADAPTER if not hasattr(made, name)]
    if missing:
        msg = f"target {text!r} returned a {type(made).__name__} without {', '.join(missing)}; {_WANTED}"
        raise TargetError(msg)
    drives = getattr(made, "drives", None)
    if drives is not None and not isinstance(drives, str):
        msg = (
            f"target {text!r}: its adapter's drives is {drives!r}; expected the name of the module under test as text, "
            f"such as 'my_engine.backward'"
        )
        raise TargetError(msg)
    return _target(cast("Adapter", made), text, own_adapter=True)


def _not_made(factory: Callable[[], object], text: str, error: BaseException) -> str:
    """Return the message if no adapter could be made: a function with arguments is not an adapter factory."""
    if inspect.isfunction(factory) and not _can_be_called(factory):
        return (
            f"target {text!r} is a function {factory.__name__}{inspect.signature(factory)}. Expected a function "
            f"{FULL}(stage_output, output_grads, input_values), or a function without arguments that returns an "
            f"adapter. {_LEADS}"
        )
    return (
        f"target {text!r} was called without arguments to get an adapter, and raised {type(error).__name__}: {error}. "
        f"{_LEADS}"
    )


def _can_be_called(factory: Callable[[], object]) -> bool:
    try:
        inspect.signature(factory).bind()
    except TypeError:
        return False
    return True


def _functions_adapter(found: object, functions: dict[str, Any], text: str) -> FunctionsAdapter:
    missing = [name for name in SPLIT if name not in functions]
    if FULL not in functions and missing:
        wanted = f"expected {FULL} or both {' and '.join(SPLIT)}"
        msg = f"target {text!r} has {', '.join(functions)} but no {missing[0]}; {wanted}"
        raise TargetError(msg)
    problems = [problem for name, function in functions.items() if (problem := signature_problem(name, function))]
    if problems:
        msg = f"target {text!r}: {'; '.join(problems)}. Expected the signatures of torch.distributed.pipelining"
        raise TargetError(msg)
    try:
        return FunctionsAdapter(text, functions, getattr(found, "gradconform_capabilities", {}))
    except (ValueError, TypeError) as error:
        msg = f"target {text!r}: invalid gradconform_capabilities: {error}"
        raise TargetError(msg) from error


def _target(adapter: Adapter, text: str, *, own_adapter: bool) -> Target:
    try:
        capabilities = claims_of(adapter)
    except (ValueError, TypeError) as error:
        msg = f"target {text!r}: invalid capabilities {adapter.capabilities!r}: {error}"
        raise TargetError(msg) from error
    return Target(text=text, adapter=adapter, capabilities=capabilities, own_adapter=own_adapter)


def _home(target: Target, module: ModuleType) -> ModuleType:
    """Return the module that defines the code under test; a registered namespace or adapter may only refer to it."""
    drives = getattr(target.adapter, "drives", None)
    if drives is not None:
        try:
            return importlib.import_module(drives)
        except ImportError as error:
            msg = f"target {target.text!r}: its adapter drives {drives!r}, which cannot be imported: {error}"
            raise TargetError(msg) from error
    if not isinstance(target.adapter, FunctionsAdapter):
        return module
    function = next(iter(target.adapter.functions.values()))
    return sys.modules.get(getattr(function, "__module__", ""), module)


def _origin(module: ModuleType) -> dict[str, Any]:
    """Return the version and file of a target, so that a report identifies the judged code."""
    file = inspect.getsourcefile(module) if getattr(module, "__file__", None) else None
    top = sys.modules.get(module.__name__.partition(".")[0])
    digest = hashlib.sha256(Path(file).read_bytes()).hexdigest() if file and is_file(file) else None
    version = getattr(top, "__version__", None) or _distribution_version(module.__name__.partition(".")[0], file)
    return {"version": str(version) if version else None, "file": file, "sha256": digest}


#: The method of a session, and the function of a namespace, for the letter of each action.
_METHODS = {"B": "backward", "I": "backward_input", "W": "backward_weight"}
_FUNCTIONS = {"B": FULL, "I": SPLIT[0], "W": SPLIT[1]}


def _action_lines(adapter: Adapter, module: ModuleType, file: str) -> dict[str, int]:
    """Return the first line of each action in ``file`` by its letter; an action defined elsewhere is left out.

    The actions of an adapter are methods of its session. A session that no class of the module describes is unknown.
    """
    if isinstance(adapter, FunctionsAdapter):
        given: Mapping[str, object] = adapter.functions
        found = {letter: given.get(name) for letter, name in _FUNCTIONS.items()}
    else:
        found = {}
        for session in _sessions(module):
            found |= {letter: vars(session)[name] for letter, name in _METHODS.items() if name in vars(session)}
    return {letter: line for letter, action in found.items() if (line := _line(action, file)) is not None}


def _sessions(module: ModuleType) -> Iterator[type]:
    """Yield the classes of a module that define a backward action, in their order."""
    for value in vars(module).values():
        if isinstance(value, type) and not set(_METHODS.values()).isdisjoint(vars(value)):
            yield value


def _line(action: object, file: str) -> int | None:
    """Return the first line of a function if ``file`` defines it; decorators hide none that names what it wraps."""
    code = getattr(inspect.unwrap(action) if callable(action) else action, "__code__", None)
    if not isinstance(code, CodeType) or Path(code.co_filename) != Path(file):
        return None
    return code.co_firstlineno


def _distribution_version(package: str, file: str | None) -> str | None:
    """Return the version of the distribution that installed ``package``, which may not know it itself.

    None if ``file``, of the imported module, is a copy elsewhere.
    """
    installed = {home for found in importlib.metadata.distributions() for home in _homes(found)}
    if not _hold(installed, file):
        return None  # without a look at the files of every distribution, which takes a third of a second
    names = set(importlib.metadata.packages_distributions().get(package, []))
    if len(names) != 1:
        return None
    found = importlib.metadata.distribution(names.pop())
    return found.version if _hold(_homes(found), file) else None


def _homes(found: importlib.metadata.Distribution) -> set[Path]:
    """Return the folders with the code of a distribution; an editable installation has its own."""
    source = json.loads(found.read_text("direct_url.json") or "{}").get("url", "")
    return {Path(str(found.locate_file("")))} | ({Path(url2pathname(urlsplit(source).path))} if source else set())


def _hold(homes: set[Path], file: str | None) -> bool:
    return file is None or any(_holds(home, Path(file)) for home in homes)


def _holds(folder: Path, file: Path) -> bool:
    """Return whether a file is in a folder, as its path says or behind links."""
    return folder.absolute() in file.absolute().parents or folder.resolve() in file.resolve().parents


#: The time limit for git: a report without a commit is still correct.
_SECONDS = 5.0


@lru_cache(maxsize=32)
def commit_of(file: str | None) -> str | None:
    """Return the commit of a file, with ``-dirty`` if the repository has changes; None if git does not track it.

    A file that is installed in an environment inside a repository does not belong to that repository.
    """
    if file is None or _git(file, "ls-files", "--error-unmatch", "--", Path(file).name) is None:
        return None
    return _git(file, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")


def _git(file: str, *words: str) -> str | None:
    program = shutil.which("git")
    if program is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603 (no shell, and each word is one of ours or the name of a file)
            [program, "-C", str(Path(file).parent), "-c", "core.fsmonitor=false", *words],
            capture_output=True,
            check=True,
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
