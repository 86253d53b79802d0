"""The numeric profile of a device: its precision, as data and as sentences. Nothing here imports torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gradconform.files.records import as_json, tupled

#: The mantissa bits of IEEE float32 and float64.
FLOAT32_BITS, FLOAT64_BITS = 23, 52
#: The usual least number of bits: the sums of a product may be rounded in another order, which costs a few bits.
USUAL_BITS = 19
#: A function with a larger error, in eps, is unusual.
USUAL_EPS = 8.0
#: The fewest bits of a correct device: bfloat16 factors of float32 products, less one in a network of them.
_FEWEST_BITS = 6
#: tanh.approx.f32 is the least precise documented function: its error is 2^-11 (NVIDIA's PTX ISA, ``tanh``).
_LARGEST_EPS = 2.0 ** (FLOAT32_BITS - 11)
#: TF32 keeps 10 bits of each factor; a network of several products may keep one less or some more.
_TF32_BITS = 12
#: The smallest normal float32; a device that flushes denormals may differ by one of them per term.
_SMALLEST_NORMAL = 2.0**-126
_FLUSHED_TERMS = 1024

#: A gradient has the rounding errors of the forward and of the backward.
_PASSES = 2
#: The number of calls of an imprecise function whose errors may add up: the steps of a short network.
CALLS = 8

#: The families of operations whose bits are measured, and their names in a sentence.
FAMILIES = {"matmul": "matrix products", "convolution": "convolutions", "rnn": "RNNs"}
FUNCTIONS = ("tanh", "sigmoid", "exp", "erf", "rsqrt")
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")

#: Parts of operation names by family; the first match decides.
_PARTS = {
    "rnn": ("rnn", "lstm", "gru"),
    "convolution": ("conv",),
    "matmul": ("mm", "linear", "einsum", "mv", "dot", "attention", "bilinear"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericProfile:
    """The precision of a device, measured from values. None, or a missing key, is unknown.

    ``float32_bits`` holds the effective mantissa bits by family, those of RNNs only if the device has a kernel for
    them. ``without_tf32`` holds those measured again with torch's TF32 switches off, for families that differ.
    ``functions`` holds the largest relative error of float32 functions, in eps. ``accumulation`` holds the dtype in
    which a 16-bit ``sum`` or ``matmul`` adds, by name such as ``bfloat16 sum``. ``atomics_spread`` is the relative
    difference between two equal runs of scatter and index_add. ``nan_kept`` and ``signed_zero_kept`` describe min, max
    and comparisons. ``integers`` are the dtypes whose extreme values survive a round trip.
    """

    float32_bits: Mapping[str, int | None] = field(default_factory=dict)
    without_tf32: Mapping[str, int] = field(default_factory=dict)
    functions: Mapping[str, float | None] = field(default_factory=dict)
    denormals_kept: bool | None = None
    accumulation: Mapping[str, str | None] = field(default_factory=dict)
    atomics_spread: float | None = None
    nan_kept: bool | None = None
    signed_zero_kept: bool | None = None
    float64_bits: int | None = None
    integers: tuple[str, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the profile as JSON values."""
        return as_json(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> NumericProfile:
        """Return the profile that :meth:`to_dict` wrote."""
        return cls(**tupled(values))

    @property
    def sentences(self) -> tuple[str, ...]:
        """Return the differences from IEEE float32, one sentence each; empty if there is none."""
        return (*self._of_wrong(), *self._of_bits(), *self._of_functions(), *self._of_values())

    @property
    def _few_families(self) -> list[str]:
        """Return families with errors that no known format has; they explain nothing."""
        return [family for family, bits in self.float32_bits.items() if bits is not None and bits < _FEWEST_BITS]

    @property
    def _far_functions(self) -> list[str]:
        """Return functions with errors that no known algorithm has; they explain nothing."""
        return [name for name, eps in self.functions.items() if eps is not None and not eps <= _LARGEST_EPS]

    @property
    def _few_bits(self) -> dict[str, int]:
        """Return families with fewer bits than usual, but still plausible."""
        found = self.float32_bits.items()
        return {family: bits for family, bits in found if bits is not None and _FEWEST_BITS <= bits < USUAL_BITS}

    @property
    def _rough(self) -> dict[str, float]:
        """Return functions with a larger error than usual, but still plausible."""
        found = self.functions.items()
        return {name: eps for name, eps in found if eps is not None and USUAL_EPS < eps <= _LARGEST_EPS}

    def _of_wrong(self) -> Iterator[str]:
        if self._few_families:
            named = ", ".join(FAMILIES[name] for name in self._few_families)
            yield f"float32 errors too large for rounding, not tolerated: {named}"
        if self._far_functions:
            # A check of them may pass: near 0, an error may be large for its value and small for the tensor.
            yield (
                f"float32 errors above {_LARGEST_EPS:,.0f} eps of a single value: {', '.join(self._far_functions)}; "
                "checks compare with a tensor's largest value"
            )

    def _of_bits(self) -> Iterator[str]:
        groups: dict[tuple[int, int | None], list[str]] = {}
        few = self._few_bits
        for family, words in FAMILIES.items():
            if family in few:
                groups.setdefault((few[family], self.without_tf32.get(family)), []).append(words)
        for (bits, without), named in groups.items():
            text = f"float32 {' and '.join(named)} have {bits} bits here"
            if without is None:
                yield text
            elif bits <= _TF32_BITS:
                yield f"{text}: TF32, torch's setting; use --flag tf32=off for {without}"
            else:
                yield f"{text}; use --flag tf32=off for {without}"

    def _of_functions(self) -> Iterator[str]:
        if self._rough:
            yield f"float32 errors: {', '.join(f'{name} {eps:.0f} eps' for name, eps in self._rough.items())}"

    def _of_values(self) -> Iterator[str]:
        if self.denormals_kept is False:
            yield "denormals are flushed to 0"
        narrow = [name for name, dtype in self.accumulation.items() if dtype is not None and dtype != "float32"]
        if narrow:
            yield f"accumulated in 16 bits: {', '.join(narrow)}"
        if self.atomics_spread:
            yield f"two equal runs of scatter or index_add differ by {self.atomics_spread:.1e}"
        if self.nan_kept is False:
            yield "min, max or a comparison loses NaN"
        if self.signed_zero_kept is False:
            yield "min or max loses the sign of 0"
        if self.float64_bits is not None and self.float64_bits < FLOAT64_BITS:
            yield f"float64 has {self.float64_bits} bits here"
        lost = [name for name in INTEGERS if self.integers is not None and name not in self.integers]
        if lost:
            yield f"integers change in a round trip: {', '.join(lost)}"

    def precision(self, operations: Iterable[str]) -> float:
        """Return the relative error of float32 in these operations beyond IEEE rounding; 0 if there is none.

        Errors beyond every known format and algorithm add none: they are judged as if the device followed IEEE.
        ``operations`` has one name for each call, since the errors of several calls of an imprecise function add up.
        """
        found, few, rough = 0.0, self._few_bits, self._rough
        for operation, calls in Counter(operations).items():
            family, function = family_of(operation), _function(operation)
            if family in few:
                found = max(found, _PASSES * 2.0 ** -few[family])
            if function in rough:
                found = max(found, min(calls, CALLS) * rough[function] * 2.0**-FLOAT32_BITS)
        return found

    @property
    def smallest_error(self) -> float:
        """Return the absolute float32 error that flushed denormals explain; 0 if the device keeps them."""
        return _FLUSHED_TERMS * _SMALLEST_NORMAL if self.denormals_kept is False else 0.0


def family_of(operation: str) -> str | None:
    """Return the family of an operation, one of :data:`FAMILIES`; None if it has none."""
    name = operation.rpartition("::")[2]
    return next((family for family, parts in _PARTS.items() if any(part in name for part in parts)), None)


def _function(operation: str) -> str | None:
    name = operation.rpartition("::")[2].removeprefix("special_").rstrip("_")
    return next((one for one in FUNCTIONS if name in {one, f"{one}_backward"}), None)
