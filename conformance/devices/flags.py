"""Torch flags that change results, set for a run by an option: ``--flag tf32=on``.

They are set around every check and restored afterwards, for the implementation and for plain autograd alike. The
report's environment lists them. torch is imported when the first flag is set.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from operator import attrgetter
from typing import Any

from gradconform.torch_releases.precision import owners as precision_owners
from gradconform.user_input.values import SelectionError, nearest

#: The values of each flag; docs/devices-reference.md describes their effects.
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
    """Return the flags by name, from ``NAME=VALUE`` texts or from a mapping.

    Raises :class:`~gradconform.user_input.values.SelectionError` for a flag or a value that does not exist, and for one
    flag with two values.
    """
    pairs = given.items() if isinstance(given, Mapping) else [_pair(text) for text in given]
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in VALUES:
            msg = f"unknown flag {name!r}; nearest: {nearest(name, VALUES)}"
            raise SelectionError(msg)
        if value not in VALUES[name]:
            msg = f"flag {name}: expected one of {', '.join(VALUES[name])}, got {value!r}"
            raise SelectionError(msg)
        if found.setdefault(name, value) != value:
            msg = f"flag {name} has two values, {found[name]!r} and {value!r}; give it once"
            raise SelectionError(msg)
    return found


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        msg = f"flag: expected NAME=VALUE, such as tf32=on; got {text!r}"
        raise SelectionError(msg)
    return name.strip(), value.strip()


@contextlib.contextmanager
def flags_set(flags: Mapping[str, str], device_type: str) -> Iterator[None]:
    """Set the flags, for autocast on ``device_type``; restore the earlier values afterwards."""
    with ExitStack() as undo:
        if flags:
            _keep_precisions(undo)
        for name, value in flags.items():
            if name == "autocast":
                undo.enter_context(_autocast(value, device_type))
            else:
                _SET[name](value, undo)
        yield


def refuse_autocast(flags: Mapping[str, str], device_types: Iterable[str]) -> None:
    """Raise ``SelectionError`` for a device type that has no autocast in that dtype."""
    value, at = flags.get("autocast", "off"), ""
    try:
        for device_type in device_types:
            at = device_type
            _autocast(value, device_type)
    except RuntimeError as error:
        msg = f"flag autocast={value} is not supported on {at}: {error}"
        raise SelectionError(msg) from error


def _autocast(value: str, device_type: str) -> AbstractContextManager[Any]:
    import torch  # noqa: PLC0415 (a run without flags needs none of this)

    if value == "off":
        return contextlib.nullcontext()
    return torch.autocast(device_type, dtype=getattr(torch, value))


def _keep_precisions(undo: ExitStack) -> None:
    """Restore the ``fp32_precision`` of each operation: torch's older setters leave "ieee" in place of "none"."""
    for owner in precision_owners():
        undo.callback(_put_back, owner, owner.fp32_precision)


def _put_back(owner: Any, precision: str) -> None:
    if owner.fp32_precision != precision:
        owner.fp32_precision = precision


#: Sets a flag, and registers the restoring of its earlier value.
Setter = Callable[[str, ExitStack], None]


def _switches(*names: str) -> Setter:
    """Return a setter that turns attributes of ``torch.backends`` all on or all off."""

    def set_all(value: str, undo: ExitStack) -> None:
        from torch import backends  # noqa: PLC0415 (as above)

        for path in names:
            module, _, name = path.rpartition(".")
            owner = attrgetter(module)(backends)
            undo.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value == "on")

    return set_all


def _deterministic(value: str, undo: ExitStack) -> None:
    import torch  # noqa: PLC0415 (as above)

    from gradconform.torch_releases.deterministic import use_deterministic_algorithms  # noqa: PLC0415 (as above)

    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    undo.callback(use_deterministic_algorithms, mode=before[0], warn_only=before[1])
    use_deterministic_algorithms(mode=value != "off", warn_only=value == "warn")


def _matmul_precision(value: str, undo: ExitStack) -> None:
    import torch  # noqa: PLC0415 (as above)

    undo.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
    torch.set_float32_matmul_precision(value)


_SET: dict[str, Setter] = {
    "cudnn_benchmark": _switches("cudnn.benchmark"),
    "cudnn_deterministic": _switches("cudnn.deterministic"),
    "deterministic_algorithms": _deterministic,
    "float32_matmul_precision": _matmul_precision,
    "reduced_precision_reduction": _switches(
        "cuda.matmul.allow_bf16_reduced_precision_reduction", "cuda.matmul.allow_fp16_reduced_precision_reduction"
    ),
    # Torch's older API: after the newer one, torch.get_float32_matmul_precision() raises.
    "tf32": _switches("cuda.matmul.allow_tf32", "cudnn.allow_tf32"),
}
