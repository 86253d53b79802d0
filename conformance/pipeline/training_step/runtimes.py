"""Runtimes by name: registered ones (entry-point group ``gradconform.runtimes``), or a user's own."""

from __future__ import annotations

from functools import lru_cache

from gradconform.process.serving import Orders, Send
from gradconform.runtime import Runtime
from gradconform.target.functions import FunctionsAdapter
from gradconform.target.loading import load
from gradconform.target.lookup import Named, TargetError, registered
from gradconform.target.resolve import load_registered, registered_targets, resolve
from gradconform.torch_releases import pipelining
from gradconform.torch_releases.names import require
from gradconform.user_input.values import nearest

from .composition import words_of
from .dimensions import DIMENSIONS

ENTRY_POINTS = "gradconform.runtimes"
#: The runtime in which torch's three functions are replaced.
TORCH = "torch"


@lru_cache(maxsize=128)
def runtime_named(target: str) -> Runtime:
    """Return the runtime that a target names, one for all cases of this process.

    Raises :class:`~gradconform.target.loading.TargetError` if there is none of that name, or the object is no runtime.
    """
    return _runtime(target, load_registered(target, ENTRY_POINTS))


def _runtime(target: str, found: object) -> Runtime:
    """Return a target's runtime; raise if it is no runtime, or makes unknown claims."""
    if not isinstance(found, Runtime):
        msg = f"{target!r} is not a runtime; expected name, claims and open(stages, spec): see docs/write-a-runtime.md"
        raise TargetError(msg)
    _refuse_unknown(target, found)
    return found


def _refuse_unknown(target: str, runtime: Runtime) -> None:
    """Raise for an unknown claim: a misspelt one would silently withhold nothing, or all."""
    known = {dimension.name: dimension.words for dimension in DIMENSIONS}
    for name, claimed in runtime.claims.items():
        if name not in known:
            msg = f"{target!r} claims the unknown dimension {name!r}; nearest: {nearest(name, known)}"
            raise TargetError(msg)
        for word in sorted(words_of(claimed) - set(known[name])):
            msg = f"{target!r}: claim {name}: expected some of {', '.join(known[name])}, got {word!r}"
            raise TargetError(msg)


def runtime_or_none(target: str) -> Runtime | None:
    """Return the runtime that a target names, or None if it names another existing object.

    A registered runtime comes before an adapter of that name. Raises :class:`~gradconform.target.loading.TargetError`
    if there is no such object.
    """
    known = registered(ENTRY_POINTS)
    if target not in known and target in registered_targets():
        return None
    found, _ = load(Named(known.get(target, target), target, {**registered_targets(), **known}))
    if not all(hasattr(found, name) for name in ("claims", "open")):
        return None
    return _runtime(target, found() if isinstance(found, type) else found)


def describe_runtime(orders: Orders, send: Send) -> None:
    """Inspect one target in a separate process: report whether it is a ``runtime``, and how it is ``described``.

    With ``steps``, it also reports the claims, of the target or of torch's runtime with the target's functions. Without
    ``steps``, or if the target is no runtime, it must be torch's three functions. Raises
    :class:`~gradconform.torch_releases.names.UnavailableError` if the steps need a name that this torch lacks.
    """
    order = next(orders)
    text = order["target"]
    if order["steps"]:
        require(*pipelining.FOR_PIPELINES)
    runtime = runtime_or_none(text) if order["steps"] else None
    if runtime is not None:
        described = {"text": text, "name": runtime.name, "version": None, "file": None, "sha256": None}
        send({"runtime": True, "described": described, "claims": _claims_of(runtime)})
        return
    target = resolve(text)
    if not isinstance(target.adapter, FunctionsAdapter):
        takes = "a runtime, or torch's three functions" if order["steps"] else "torch's three functions"
        msg = f"target {text!r} is an adapter; a pipeline requires {takes}, which its PipelineStage calls"
        raise TargetError(msg)
    claims = _claims_of(runtime_named(TORCH)) if order["steps"] else {}
    send({"runtime": False, "described": target.described(), "claims": claims})


def _claims_of(runtime: Runtime) -> dict[str, list[str]]:
    return {name: sorted(words_of(claimed)) for name, claimed in runtime.claims.items()}
