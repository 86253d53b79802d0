"""Measurement of a device's numeric profile: values computed there, compared with float64 on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradconform.torch_releases.dispatch import Called

from .device import Device
from .flags import flags_set
from .numeric_profile import (
    FAMILIES,
    FLOAT32_BITS,
    FLOAT64_BITS,
    FUNCTIONS,
    INTEGERS,
    USUAL_BITS,
    NumericProfile,
    family_of,
)

Value = TypeVar("Value")
#: Returns the value of one probe; None if it raised or crashed.
Ask = Callable[[str, Callable[[], object]], object]

#: This many ones add up to 256 in bfloat16 and to 2048 in float16 if each partial sum is rounded to the dtype.
_ONES = 4096
_SEED = 34


def measure_numerics(device: Device, ask: Ask | None = None) -> NumericProfile:
    """Return the numeric profile of ``device``. A probe that fails leaves its field unknown.

    ``ask`` runs each probe by name; without it, the probes run in this process.
    """
    run = ask or _guarded
    values = {name: run(name, partial(probe, device)) for name, probe in _PROBES.items()}
    bits = {family: values.pop(family) for family in FAMILIES}
    low = [family for family, found in bits.items() if isinstance(found, int) and found < USUAL_BITS]
    again = {family: run(f"{family} with tf32=off", partial(_without_tf32, family, device)) for family in low}
    without = {name: found for name, found in again.items() if isinstance(found, int) and found > int(str(bits[name]))}
    known = {name: value for name, value in values.items() if value is not None}
    return NumericProfile.from_dict({"float32_bits": bits, "without_tf32": without, **known})


#: The probes of special numbers, which say nothing about a device that changes such numbers in a copy.
OF_SPECIAL_NUMBERS = frozenset({"denormals_kept", "nan_kept", "signed_zero_kept", "integers"})


def _guarded(_: str, probe: Callable[[], object]) -> object:
    try:
        return probe()
    except Exception:  # noqa: BLE001 (backends raise anything for missing features)
        return None


def _without_tf32(family: str, device: Device) -> object:
    with flags_set({"tf32": "off"}, device.type):
        return _PROBES[family](device)


def _random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return values in [1, 2) of either sign: each product has a full mantissa and none is small."""
    generator = torch.Generator().manual_seed(_SEED + sum(shape))
    sizes = 1 + torch.rand(shape, generator=generator, dtype=dtype)
    return sizes * (torch.randint(0, 2, shape, generator=generator) * 2 - 1)


def _bits(error: float) -> int:
    """Return the mantissa bits of a format that rounds to nearest with this relative error."""
    return FLOAT32_BITS if error <= 0 else max(0, min(FLOAT32_BITS, round(-math.log2(error)) - 1))


def _gradients(call: Callable[..., Tensor], inputs: tuple[Tensor, ...], grad: Tensor) -> list[Tensor]:
    leaves = [one.clone().requires_grad_() for one in inputs]
    output = call(*leaves)
    return [output.detach(), *torch.autograd.grad(output, leaves, grad)]


def _errors(device: Device, call: Callable[..., Tensor], inputs: tuple[Tensor, ...], grad: Tensor) -> list[float]:
    """Return the largest relative error, by element, of the output and of each input gradient."""
    there = device.torch_device
    got = _gradients(call, tuple(one.to(there) for one in inputs), grad.to(there))
    right = _gradients(call, tuple(one.double() for one in inputs), grad.double())
    device.synchronize(*got)  # a lazy device computes all of them in one graph
    return [_relative(device.to_cpu(one), exact) for one, exact in zip(got, right, strict=True)]


def _relative(got: Tensor, exact: Tensor) -> float:
    """Return the largest error relative to its own element; if that is 0, the absolute error."""
    error = (got.double() - exact).abs() / torch.where(exact == 0, 1.0, exact.abs())
    largest = float(error.max())
    return largest if math.isfinite(largest) else 1.0


def _matmul(device: Device) -> int:
    unit, values, grad = torch.eye(64), _random(64, 64), _random(64, 64) * 1.0
    output, left, _ = _errors(device, torch.matmul, (values, unit), grad)
    again, _, right = _errors(device, torch.matmul, (unit, values), grad)
    return _bits(max(output, left, again, right))


def _convolution(device: Device) -> int:
    """Return the bits of a convolution whose sums have one nonzero term, so that only rounded factors err."""
    call = partial(functional.conv2d, padding=1)
    pick = torch.zeros(16, 16, 3, 3)
    pick[torch.arange(16), torch.arange(16), 1, 1] = 1.0
    grad = _random(2, 16, 8, 8)
    output, of_input, _ = _errors(device, call, (_random(2, 16, 8, 8), pick), grad)
    dot = torch.zeros(1, 16, 8, 8)
    dot[0, 3, 4, 4] = 1.0
    again, _, of_weight = _errors(device, call, (dot, _random(16, 16, 3, 3)), grad[:1])
    return _bits(max(output, of_input, again, of_weight))


def _rnn(device: Device) -> int | None:
    """Return the bits of the worst output or gradient, relative to the largest element of its tensor.

    Only kinds that the device runs by a kernel of its own are read; None if it composes all of them of other
    operations, whose own bits count. torch_xla needs 30 s to compile the gradients of composed ones.
    """
    worst = None
    for kind in (nn.RNN, nn.GRU, nn.LSTM):
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(_SEED)
            module = kind(8, 8, num_layers=2, bidirectional=True)
        right = _of_module(module.double(), torch.float64, torch.device("cpu"))
        with Called() as called:
            got = _of_module(module.float().to(device.torch_device), torch.float32, device.torch_device)
        if all(family_of(str(operation.name())) != "rnn" for operation in called.operations):
            continue
        device.synchronize(*got)
        for one, exact in zip(got, right, strict=True):
            error = (device.to_cpu(one).double() - exact).abs().max() / exact.abs().max()
            worst = max(worst or 0.0, float(error) if torch.isfinite(error) else 1.0)
    return None if worst is None else _bits(worst)


def _of_module(module: nn.Module, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    values = (_random(8, 3, 8) / 2).to(dtype).to(device).requires_grad_()
    output = module(values)[0]
    leaves = [values, *module.parameters()]
    grad = _random(*output.shape).to(dtype).to(device)
    return [output.detach(), *torch.autograd.grad(output, leaves, grad)]


def _functions(device: Device) -> dict[str, float | None]:
    return {name: _number(_guarded(name, partial(_function, device, name))) for name in FUNCTIONS}


def _number(value: object) -> float | None:
    return value if isinstance(value, float) else None


def _function(device: Device, name: str) -> float:
    grid = torch.linspace(1e-3, 16.0, 4001) if name == "rsqrt" else torch.linspace(-8.0, 8.0, 4001)
    call: Callable[[Tensor], Tensor] = getattr(torch, name)
    error = _relative(device.to_cpu(call(grid.to(device.torch_device))), call(grid.double()))
    return error / torch.finfo(torch.float32).eps


def _denormals_kept(device: Device) -> bool:
    small = torch.tensor([1e-39, 2e-30]).to(device.torch_device)
    factors = torch.tensor([1.0, 1e-10]).to(device.torch_device)
    added = small[:1] + small[:1]
    return bool((device.to_cpu(small * factors) > 0).all()) and bool((device.to_cpu(added) > 0).all())


def _accumulation(device: Device) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for dtype in (torch.bfloat16, torch.float16):
        ones = torch.ones(_ONES, dtype=dtype)
        calls: dict[str, Callable[[Tensor], Tensor]] = {
            "sum": torch.sum,
            "matmul": lambda values: values.reshape(1, -1) @ values.reshape(-1, 1),
        }
        for name, call in calls.items():
            total = _guarded(
                name, partial(lambda call, ones: float(device.to_cpu(call(ones))), call, ones.to(device.torch_device))
            )
            short = str(dtype).removeprefix("torch.")
            found[f"{short} {name}"] = None if total is None else "float32" if total == _ONES else short
    return found


def _atomics_spread(device: Device) -> float:
    index = (torch.arange(1 << 14) % 4).to(device.torch_device)
    values = _random(1 << 14).to(device.torch_device)
    runs = []
    for _ in range(2):
        empty = torch.zeros(4, device=device.torch_device)
        runs.append(torch.cat([empty.index_add(0, index, values), empty.scatter_add(0, index, values)]))
    first, second = (device.to_cpu(run) for run in runs)
    return float((first - second).abs().max() / first.abs().max())


def _nan_kept(device: Device) -> bool:
    nan = torch.tensor([float("nan"), 1.0]).to(device.torch_device)
    one = torch.tensor([1.0, float("nan")]).to(device.torch_device)
    kept = [torch.maximum(nan, one), torch.minimum(nan, one), nan.max(), nan.min()]
    false = [nan == one, nan < one, nan > one]
    return all(bool(device.to_cpu(x).isnan().all()) for x in kept) and not any(
        bool(device.to_cpu(x).any()) for x in false
    )


def _signed_zero_kept(device: Device) -> bool:
    zero = torch.tensor([-0.0, -0.0]).to(device.torch_device)
    kept = [torch.maximum(zero, zero), torch.minimum(zero, zero), zero.max()]
    return all(bool(device.to_cpu(x).signbit().all()) for x in kept)


def _float64_bits(device: Device) -> int:
    """Return the bits of a float64 that a product keeps."""
    steps = torch.tensor([1.0 + 2.0**-k for k in range(1, FLOAT64_BITS + 1)], dtype=torch.float64)
    kept = device.to_cpu(steps.to(device.torch_device) * 1.0) == steps
    return int(kept.long().cumprod(0).sum())


def _integers(device: Device) -> list[str]:
    def kept(name: str) -> bool:
        dtype: torch.dtype = getattr(torch, name)
        ends = torch.tensor([torch.iinfo(dtype).min, 1, torch.iinfo(dtype).max], dtype=dtype)
        back = device.to_cpu(ends.to(device.torch_device))
        return back.dtype == dtype and torch.equal(back, ends)

    return [name for name in INTEGERS if _guarded(name, partial(kept, name))]


_PROBES: dict[str, Callable[[Device], object]] = {
    "matmul": _matmul,
    "convolution": _convolution,
    "rnn": _rnn,
    "functions": _functions,
    "denormals_kept": _denormals_kept,
    "accumulation": _accumulation,
    "atomics_spread": _atomics_spread,
    "nan_kept": _nan_kept,
    "signed_zero_kept": _signed_zero_kept,
    "float64_bits": _float64_bits,
    "integers": _integers,
}
