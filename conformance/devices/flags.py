"""Flags of torch that change what is computed, set for a run by option: ``--flag tf32=on``.

They are set around every check and put back afterwards, for the implementation and for plain autograd alike; the
environment of the report says which. torch is imported when the first one is set.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from gradconform.naming import SelectionError, nearest

_SWITCH = {"on": True, "off": False}

#: What each flag may be; docs/devices.md says what each does.
VALUES: dict[str, tuple[str, ...]] = {
    "autocast": ("off", "bfloat16", "float16"),
    "cudnn_benchmark": ("on", "off"),
    "cudnn_deterministic": ("on", "off"),
    "deterministic_algorithms": ("on", "off", "warn"),
    "float32_matmul_precision": ("highest", "high", "medium"),
    "reduced_precision_reduction": ("on", "off"),
    "tf32": ("on", "off"),
}


def flags_named(given: Iterable[str] | Mapping[str, str]) -> dict[str, str]:
    """Return the flags by name, from ``NAME=VALUE`` each or from a mapping.

    Raises :class:`~gradconform.naming.SelectionError` for a flag or a value that does not exist, and for one flag with
    two values.
    """
    pairs = given.items() if isinstance(given, Mapping) else [_pair(text) for text in given]
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in VALUES:
            msg = f"flag {name!r} does not exist; nearest: {nearest(name, VALUES)}"
            raise SelectionError(msg)
        if value not in VALUES[name]:
            msg = f"flag {name}={value!r}: expected one of {', '.join(VALUES[name])}"
            raise SelectionError(msg)
        if found.setdefault(name, value) != value:
            msg = f"flag {name} is given as {found[name]!r} and as {value!r}; give it once"
            raise SelectionError(msg)
    return found


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        msg = f"flag {text!r} has no value; expected NAME=VALUE, such as tf32=on"
        raise SelectionError(msg)
    return name.strip(), value.strip()


@contextlib.contextmanager
def flags_set(flags: Mapping[str, str], device_type: str) -> Iterator[None]:
    """Set the flags, for autocast on ``device_type``; put back what was there."""
    with ExitStack() as stack:
        for name, value in flags.items():
            stack.enter_context(_autocast(value, device_type) if name == "autocast" else _SET[name](value))
        yield


def refuse_autocast(flags: Mapping[str, str], device_types: Iterable[str]) -> None:
    """Raise :class:`~gradconform.naming.SelectionError` for a type of device that has no autocast in that dtype."""
    value, at = flags.get("autocast", "off"), ""
    try:
        for device_type in device_types:
            at = device_type
            _autocast(value, device_type)
    except RuntimeError as error:
        msg = f"flag autocast={value} cannot be set on {at}: {error}"
        raise SelectionError(msg) from error


def _autocast(value: str, device_type: str) -> AbstractContextManager[Any]:
    import torch  # noqa: PLC0415 (a run without flags needs none of this)

    if value == "off":
        return contextlib.nullcontext()
    return torch.autocast(device_type, dtype=getattr(torch, value))


@contextlib.contextmanager
def _attributes(attributes: Iterable[tuple[Any, str]], value: bool) -> Iterator[None]:  # noqa: FBT001 (the value itself)
    before = [(owner, name, getattr(owner, name)) for owner, name in attributes]
    try:
        for owner, name, _ in before:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, was in reversed(before):
            setattr(owner, name, was)


@contextlib.contextmanager
def _precisions_kept() -> Iterator[None]:
    """Put back the ``fp32_precision`` of each operation: torch's older setters leave "ieee" where "none" was."""
    from torch import backends  # noqa: PLC0415 (as above)

    owners: list[Any] = [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn, backends.mkldnn.matmul]  # type: ignore[attr-defined] # set by the modules themselves
    before = [(owner, owner.fp32_precision) for owner in owners]
    try:
        yield
    finally:
        for owner, was in before:
            if owner.fp32_precision != was:
                owner.fp32_precision = was


@contextlib.contextmanager
def _tf32(value: str) -> Iterator[None]:
    from torch import backends  # noqa: PLC0415 (as above)

    # The older of torch's two ways: with the newer one torch.get_float32_matmul_precision() raises.
    both = [(backends.cuda.matmul, "allow_tf32"), (backends.cudnn, "allow_tf32")]
    with _precisions_kept(), _attributes(both, _SWITCH[value]):
        yield


def _reduction(value: str) -> AbstractContextManager[None]:
    from torch import backends  # noqa: PLC0415 (as above)

    names = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")
    return _attributes([(backends.cuda.matmul, name) for name in names], _SWITCH[value])


def _cudnn(name: str) -> Callable[[str], AbstractContextManager[None]]:
    def set_one(value: str) -> AbstractContextManager[None]:
        from torch import backends  # noqa: PLC0415 (as above)

        return _attributes([(backends.cudnn, name)], _SWITCH[value])

    return set_one


@contextlib.contextmanager
def _deterministic(value: str) -> Iterator[None]:
    import torch  # noqa: PLC0415 (as above)

    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(value != "off", warn_only=value == "warn")
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@contextlib.contextmanager
def _matmul_precision(value: str) -> Iterator[None]:
    import torch  # noqa: PLC0415 (as above)

    before = torch.get_float32_matmul_precision()
    with _precisions_kept():
        torch.set_float32_matmul_precision(value)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


_SET: dict[str, Callable[[str], AbstractContextManager[None]]] = {
    "cudnn_benchmark": _cudnn("benchmark"),
    "cudnn_deterministic": _cudnn("deterministic"),
    "deterministic_algorithms": _deterministic,
    "float32_matmul_precision": _matmul_precision,
    "reduced_precision_reduction": _reduction,
    "tf32": _tf32,
}
