"""The options of simx, from the environment or :func:`~gradconform.plugins.devices.simx.inject`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from gradconform.torch_releases.private_use import has_kernel
from gradconform.user_input.values import nearest

PREFIX = "SIMX_"
MOST_DEVICES = 16
_DTYPES = frozenset(
    # as in csrc/options.h
    {"float64", "float32", "float16", "bfloat16", "complex64", "complex128"}
    | {"int64", "int32", "int16", "int8", "uint8", "bool"}
)
_WRONG = ("index", "transpose", "stale")
#: Operations that torch composes on a CPU, and calls as a whole on an accelerator; simx has a kernel for each.
_OWN_KERNELS = frozenset(
    {
        "aten::_copy_from",
        "aten::_local_scalar_dense",
        "aten::convolution",
        "aten::convolution_backward",
        "aten::_thnn_fused_lstm_cell",
        "aten::_thnn_fused_lstm_cell_backward_impl",
        "aten::_thnn_fused_gru_cell",
        "aten::_thnn_fused_gru_cell_backward",
    }
)


@dataclass(frozen=True, slots=True)
class Option:
    """One option: an example value, its effect, and a function that returns the problem of a value, or None."""

    example: str
    meaning: str
    complaint: Callable[[str], str | None]


def _flag(value: str) -> str | None:
    return None if value in {"0", "1"} else "expected 1 or 0"


def _switch(value: str) -> str | None:
    return None if value in {"0", "1", "torch"} else "expected 1, 0 or torch"


def _count(value: str) -> str | None:
    fine = value.isdecimal() and 1 <= int(value) <= MOST_DEVICES
    return None if fine else f"expected a number of devices from 1 to {MOST_DEVICES}"


def _elements(value: str) -> str | None:
    return None if value.isdecimal() else "expected a number of elements"


def _eps(value: str) -> str | None:
    return None if value.isdecimal() else "expected a number of eps"


def _bytes(value: str) -> str | None:
    return None if value.isdecimal() and int(value) > 0 else "expected a number of bytes above 0"


def _each(complaint: Callable[[str], str | None]) -> Callable[[str], str | None]:
    """Return a function that returns the problem of the first invalid value in a text with commas."""
    return lambda value: next(filter(None, map(complaint, value.split(","))), None)


def _dtype(name: str) -> str | None:
    return None if name in _DTYPES else f"{name!r} is not a dtype; nearest: {nearest(name, _DTYPES)}"


def _operation(name: str) -> str | None:
    """Return the problem of an operation's name, or None; the operation must reach the device."""
    namespace, colons, short = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), short, None) if colons and namespace and short else None
    if packet is None:
        return f"{name!r} is not an operation; expected a name of torch's schemas, such as aten::mm"
    reaches = any(has_kernel(f"{name}.{overload}".removesuffix(".default"), "CPU") for overload in packet.overloads())
    if reaches or name in _OWN_KERNELS:
        return None
    return f"{name!r} never reaches the device: torch composes it of other operations; name one of those"


def _pairs(kind: str, fine: Callable[[str], bool]) -> Callable[[str], str | None]:
    def complaint(pair: str) -> str | None:
        name, _, setting = pair.rpartition(":")
        return _operation(name) if fine(setting) else f"{pair!r} ends with {setting!r}; expected OPERATION:{kind}"

    return _each(complaint)


def _moment(value: str) -> str | None:
    name, _, number = value.rpartition(":")
    if not (number.isdecimal() and int(number) > 0):
        return "expected N or OPERATION:N, counted from 1"
    return _operation(name) if name else None


#: Every option by name; the environment variable is the name in capitals after SIMX_.
OPTIONS: dict[str, Option] = {
    "devices": Option("3", "number of indices (default: 2); fixed once loaded", _count),
    "memory_limit": Option("1048576", "bytes per index; beyond them `torch.OutOfMemoryError`", _bytes),
    "no_memory_stats": Option("1", "the memory counters do not change", _flag),
    "no_dtypes": Option("float64,bfloat16", "dtypes that raise `TypeError`", _each(_dtype)),
    "narrow_float64": Option("1", "float64 tensors are created in float32 without an error", _flag),
    "no_ops": Option("aten::gelu", "operations that raise `NotImplementedError`", _each(_operation)),
    "cpu_result": Option("aten::gelu", "operations whose result stays on the CPU", _each(_operation)),
    "cpu_fallback": Option("aten::gelu", "operations for which torch copies to the CPU and back", _each(_operation)),
    "tf32": Option(
        "torch",
        "factors of float32 products, convolutions and recurrent cells rounded to TF32: `1` always, `torch` where "
        "torch's switches for CUDA and cuDNN say so",
        _switch,
    ),
    "rough": Option(
        "aten::log:64", "float32 results of an operation are off by up to so many eps", _pairs("EPS", str.isdecimal)
    ),
    "rough_cells": Option("64", "tanh and sigmoid in the cells of LSTMs and GRUs are off by up to so many eps", _eps),
    "atomics": Option(
        "1", "`index_add`, `scatter_add` and the gradient of an embedding add in an order of their own", _flag
    ),
    "own_random": Option("1", "a seed draws other random numbers than on the CPU", _flag),
    "bfloat16_accumulate": Option("1", "matrix products and sums in bfloat16 add up in bfloat16", _flag),
    "flush_denormals": Option("1", "denormal results are 0", _flag),
    "nondeterministic": Option("1", "matrix products and sums add up in an order that no seed decides", _flag),
    "wrong": Option(
        "aten::mm:transpose",
        "an operation's first result is wrong: `index` (each element from its neighbour), `transpose`, or `stale` "
        "(that of the call before)",
        _pairs(f"{{{','.join(_WRONG)}}}", _WRONG.__contains__),
    ),
    "wrong_above": Option(
        "32768",
        "operations that `wrong` names are right where their result has no more elements than so many",
        _elements,
    ),
    "copying_views": Option("1", "views are copies, so that writes through them are lost", _flag),
    "mix_with_cpu": Option("1", "operations accept CPU tensors together with those of the device", _flag),
    "one_index": Option("1", "tensors are created on index 0, for any index", _flag),
    "late_streams": Option("1", "results of a side stream are NaN to other streams until these wait for it", _flag),
    "unseeded": Option("1", "random numbers do not depend on the seed", _flag),
    "slow": Option(
        "aten::mm:50", "an operation takes so many milliseconds longer", _pairs("MILLISECONDS", str.isdecimal)
    ),
    "lost_at": Option("100", "the N-th operation raises `torch.AcceleratorError`, as does all after it", _moment),
    "hang_at": Option("100", "the N-th operation never returns", _moment),
    "abort_at": Option("aten::mm:3", "the N-th operation ends the process with SIGABRT", _moment),
    "segfault_at": Option("100", "the N-th operation ends the process with SIGSEGV", _moment),
    "abort_at_exit": Option("1", "the process ends with SIGABRT when all is done", _flag),
}


def from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the options of SIMX_ variables; raise ``ValueError`` for an unknown name or value."""
    given = {name.removeprefix(PREFIX): value for name, value in environment.items() if name.startswith(PREFIX)}
    return {
        name.lower(): _checked(name.lower(), value, PREFIX + name) for name, value in sorted(given.items()) if value
    }


def from_arguments(arguments: Mapping[str, str | int]) -> dict[str, str]:
    """Return the options of Python arguments, with True as 1; raise ``ValueError`` as for the environment."""
    return {
        name: _checked(name, str(int(value)) if isinstance(value, int) else value, name)
        for name, value in arguments.items()
    }


def _checked(name: str, value: str, spelled: str) -> str:
    if name not in OPTIONS:
        known = {PREFIX + known.upper() if spelled.startswith(PREFIX) else known for known in OPTIONS}
        msg = f"simx has no option {spelled}; nearest: {nearest(spelled, known)}"
        raise ValueError(msg)
    if complaint := OPTIONS[name].complaint(value):
        msg = f"{spelled}={value!r}: {complaint}"
        raise ValueError(msg)
    return value
