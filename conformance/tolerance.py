"""The numeric rule: how far a gradient may be from the reference, given the distance of plain autograd.

``e_impl <= 2 * e_oracle + c * eps(dtype) * scale``, for the largest error and also for the root mean square. The
section "How a gradient is judged" of docs/contract.md is the source; ``c`` comes from tolerances.toml.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import torch

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from torch import Tensor

#: The factor by which plain autograd may err more than an implementation on a device before the device fails: another
#: device has other kernels, which differ by more than the order of the same sums.
FAR = 4.0

#: Two errors that differ by at most this many eps of the scale count as equally large.
_EQUALLY_WRONG = 8.0

#: A gradient counts as the remainder of cancelling terms if its terms are larger than it by this factor. An eighth of
#: ``c``, which is at least 1 eps, is still the difference of two roundings of such terms.
_CANCELLED = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Errors that a device's numeric profile explains: ``relative`` to the scale of a tensor, and ``absolute``."""

    relative: float = 0.0
    absolute: float = 0.0


_OVERRIDES: dict[str, float] = {}
_OF_DEVICE: dict[str, float] = {}
_ROOMS: dict[str, Room] = {}


@lru_cache(maxsize=1)
def _shipped() -> dict[str, dict[str, float]]:
    text = files("gradconform").joinpath("tolerances.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    return {table: {name: float(value) for name, value in of.items()} for table, of in tables.items()}


def floor_factor(dtype: torch.dtype) -> float:
    """Return ``c`` for a real dtype; raise ``ValueError`` if tolerances.toml has none."""
    name = str(dtype).removeprefix("torch.")
    known = {**_shipped()["c"], **_OF_DEVICE, **_OVERRIDES}
    if name not in known:
        msg = f"no tolerance for {dtype}; expected one of {sorted(known)}, or add one by the tolerances hook"
        raise ValueError(msg)
    return known[name]


def mean_floor(rule: str, dtype: torch.dtype) -> float:
    """Return the floor of a rule of the mean, ``shift`` or ``spread``, in eps of a real dtype.

    A dtype that a hook adds has the floor of float64, the widest.
    """
    table = _shipped()[rule]
    return table.get(str(dtype).removeprefix("torch."), table["float64"])


def override(factors: Mapping[str, Any]) -> None:
    """Set or replace ``c`` for some dtypes; raise ``ValueError`` for a value that is not a positive number."""
    refuse_no_tolerances(factors)
    _OVERRIDES.update(factors)


def overridden() -> dict[str, float]:
    """Return each ``c`` that :func:`override` has set, by dtype."""
    return dict(_OVERRIDES)


@contextlib.contextmanager
def tolerances_as_shipped() -> Iterator[None]:
    """Judge by the ``c`` of tolerances.toml within this context, ignoring hooks."""
    before = overridden()
    _OVERRIDES.clear()
    try:
        yield
    finally:
        _OVERRIDES.update(before)


@contextlib.contextmanager
def tolerances_of(factors: Mapping[str, float]) -> Iterator[None]:
    """Judge by the ``c`` of a device's object within this context, except for dtypes that a hook overrides."""
    before = dict(_OF_DEVICE)
    _OF_DEVICE.update(factors)
    try:
        yield
    finally:
        _OF_DEVICE.clear()
        _OF_DEVICE.update(before)


@contextlib.contextmanager
def rooms_of(rooms: Mapping[str, Room]) -> Iterator[None]:
    """Add each :class:`Room` to the bounds of its dtype within this context."""
    before = dict(_ROOMS)
    _ROOMS.update(rooms)
    try:
        yield
    finally:
        _ROOMS.clear()
        _ROOMS.update(before)


def refuse_no_tolerances(factors: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` if a ``c`` is not a positive number."""
    for name, value in factors.items():
        if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
            msg = f"tolerance {name!r} = {value!r}; expected a positive number, in units of eps times scale"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class Partials:
    """The largest partial sums so far: ``peak`` of max|g|, ``rms`` of the root mean square."""

    peak: float = 0.0
    rms: float = 0.0

    def with_(self, tensor: Tensor) -> Partials:
        """Return the larger of these and those of ``tensor``; NaN and inf do not count."""
        peak, rms = _peak_and_rms(tensor)
        return Partials(max(self.peak, peak), max(self.rms, rms))


def sizes(grads: Iterable[Tensor | None]) -> Partials:
    """Return the largest of some gradients, as partial sums; None counts as absent."""
    found = Partials()
    for grad in grads:
        found = found if grad is None else found.with_(grad)
    return found


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result of the rule for one tensor.

    ``worst`` is the index of the largest error, as :func:`_first_of_the_worst`. ``in_eps`` is that error in eps of the
    dtype times the scale.
    """

    error: float
    bound: float
    error_ratio: float
    worst: tuple[int, ...]
    in_eps: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether the error is within the bound."""
        return self.error_ratio <= 1.0


def judge(  # noqa: PLR0913 (a tensor, its references, and its allowed error)
    got: Tensor,
    oracle: Tensor,
    reference: Tensor | None,
    scale: Partials,
    *,
    spread: float = 0.0,
    factor: float = 1.0,
    terms: Callable[[], Partials] | None = None,
    computed_in: torch.dtype | None = None,
) -> Judgement:
    """Return the judgement of ``got`` by the rule, with its bound times ``factor``.

    The tensors have one shape, and ``got`` and ``oracle`` have one dtype. ``reference`` is the same gradient in
    float64, or None if the oracle itself is the reference (float64). Elements that are not finite in ``oracle`` do not
    count: they are judged separately. ``spread`` is the difference of two runs of the oracle, and the implementation
    may differ as much. ``terms`` measures the terms of the gradient's sum; it is called only if the rule is broken,
    since cancelling terms are partial sums as well. ``computed_in`` is the dtype of most of the inputs of the gradient,
    if it is narrower than the gradient's own: a parameter in float64 of a stage in float32.
    """
    dtype = computed_in or (oracle.dtype.to_real() if oracle.is_complex() else oracle.dtype)
    wide = torch.complex128 if oracle.is_complex() else torch.float64
    got, oracle = got.detach().cpu().to(wide), oracle.detach().cpu().to(wide)
    reference = oracle if reference is None else reference.to(wide)
    counted = torch.isfinite(got.abs()) & torch.isfinite(oracle.abs()) & torch.isfinite(reference.abs())
    error = torch.where(counted, got - reference, 0.0).abs()
    oracle_error = torch.where(counted, oracle - reference, 0.0).abs()
    eps = torch.finfo(dtype).eps
    room = _ROOMS.get(str(dtype).removeprefix("torch."), Room())

    def by(scale: Partials) -> Judgement:
        unit = floor_factor(dtype) * eps + room.relative
        least = spread + room.absolute
        bound = factor * (2.0 * _max(oracle_error) + unit * scale.peak + least)
        bound_rms = factor * (2.0 * _rms(oracle_error) + unit * scale.rms + least)
        error_ratio = max(_ratio(_max(error), bound), _ratio(_rms(error), bound_rms))
        worst, in_eps = _first_of_the_worst(error, eps * scale.peak), _ratio(_max(error), eps * scale.peak)
        return Judgement(_max(error), bound, error_ratio, worst, in_eps)

    scale = scale.with_(reference)
    judged = by(scale)
    if judged.passed or terms is None:
        return judged
    cancelled = terms()
    return by(cancelled) if cancelled.peak > _CANCELLED * scale.peak else judged


#: The narrower dtypes that a gradient may have passed through, by its own.
_NARROWER = {
    torch.float64: (torch.float32,),
    torch.float32: (torch.bfloat16, torch.float16),
    torch.bfloat16: (torch.float8_e4m3fn, torch.float8_e5m2),
    torch.float16: (torch.float8_e4m3fn, torch.float8_e5m2),
}

#: How many bits a narrower dtype must lose, over the elements that agree with plain autograd's, to rule out chance.
_LOST = 64.0


def gone_through(got: Tensor, expected: Tensor) -> torch.dtype | None:
    """Return the narrower dtype that holds each element of ``got`` and not those of ``expected``; None without one.

    A gradient that was computed in a dtype uses all of its bits. If a narrower dtype holds all its elements, the
    gradient was rounded to it, even if its error is within plain autograd's own. Both tensors have one shape and dtype.
    """
    for narrow in _NARROWER.get(got.dtype, ()) if got.layout == torch.strided else ():
        bits = math.log2(torch.finfo(narrow).eps / torch.finfo(got.dtype).eps)
        # The remainder of cancelling terms is a different number each time, and every dtype holds zero.
        near = (got - expected).abs() <= torch.finfo(narrow).eps * expected.abs()
        lost = near & expected.isfinite() & (expected.to(narrow).to(expected.dtype) != expected)
        if bits * int(lost.sum()) >= _LOST and torch.equal(got.to(narrow).to(got.dtype), got):
            return narrow
    return None


def _first_of_the_worst(error: Tensor, rounding: float) -> tuple[int, ...]:
    """Return the index of the first element whose error is within a few ``rounding`` of the largest.

    Elements that are equally wrong except for rounding, such as both ends of a transpose, would otherwise swap places
    between processors. ``rounding`` is eps of the dtype times the scale of the comparison; an element that is half as
    wrong never counts.
    """
    if not error.numel():
        return ()
    largest = _max(error)
    equally_wrong = error >= largest - min(_EQUALLY_WRONG * rounding, largest / 3)
    return tuple(int(i) for i in equally_wrong.nonzero()[0])


def _ratio(error: float, bound: float) -> float:
    if error == 0.0:
        return 0.0
    return error / bound if bound > 0.0 else sys.float_info.max


def _max(tensor: Tensor) -> float:
    return float(tensor.max()) if tensor.numel() else 0.0


def _rms(tensor: Tensor) -> float:
    return math.sqrt(float(tensor.square().mean())) if tensor.numel() else 0.0


def _peak_and_rms(tensor: Tensor) -> tuple[float, float]:
    size = tensor.detach().abs().double()
    peak = _max(size)
    if not math.isfinite(peak):
        size = torch.where(torch.isfinite(size), size, 0.0)
        peak = _max(size)
    return peak, _rms(size)


def describe(value: Any, other: Any = None) -> str:
    """Return one element for a message, with the digits of a float32.

    If only the digits of a float64 distinguish it from the ``other`` element of the message, it has those.
    """
    number = value.item()
    if not isinstance(number, float):
        return f"{number}"
    alike = other is not None and number != other.item() and f"{number:.9g}" == f"{other.item():.9g}"
    return f"{number:.17g}" if alike else f"{number:.9g}"
