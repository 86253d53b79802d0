"""Names of devices: ``cpu``, ``cuda:1``, ``npu:*``, ``auto``, ``all``. There is no list of known ones."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from gradconform.user_input.values import SelectionError

if TYPE_CHECKING:
    import torch

#: The name of a dtype that a run accepts.
DtypeName = Literal["float64", "float32", "bfloat16", "float16"]

#: A dtype that a run accepts, as torch's object or by name; ``all`` means every one that the device has.
Dtype: TypeAlias = "DtypeName | Literal['all'] | torch.dtype"

#: Every :data:`DtypeName`.
DTYPE_NAMES: tuple[DtypeName, ...] = ("float64", "float32", "bfloat16", "float16")

#: Short names of dtypes.
_SPELT_SHORT = {
    "fp64": "float64", "double": "float64", "f64": "float64", "fp32": "float32", "float": "float32", "f32": "float32",
    "single": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16", "f16": "float16",
}  # fmt: skip

#: Kinds of dtypes that the kit does not run in, and the place that covers them.
_OTHER_KINDS = {
    "complex": "Complex stages run in complex64 with float32, and in complex128 with float64",
    "float8": "A parameter in float8 has no gradient in torch; --block float8-linear tests float8 products",
    "fp8": "A parameter in float8 has no gradient in torch; --block float8-linear tests float8 products",
    "int": "Integers have no gradients",
    "uint": "Integers have no gradients",
    "bool": "Bools have no gradients",
}

#: Torch's spelling of devices; torch or a plugin decides whether the type exists.
_FORM = re.compile(r"([A-Za-z][\w-]*)(?::(\d+|\*))?")


@dataclass(frozen=True, slots=True)
class DeviceName:
    """One name: a type, or ``auto`` or ``all``; ``index`` is a number, ``*`` for every one, or None."""

    text: str
    type: str
    index: str | None = None

    @property
    def is_cpu(self) -> bool:
        """Whether this is the CPU, which is known to work."""
        return self.type == "cpu"

    @property
    def discovers(self) -> Literal["auto", "all"] | None:
        """Return ``auto`` or ``all`` if the name requires discovery; None for a named device."""
        return "auto" if self.text == "auto" else "all" if self.text == "all" else None


def device_names(specs: Iterable[object]) -> list[DeviceName]:
    """Return the names in ``specs``, each once; commas separate several in one.

    Raises :class:`~gradconform.user_input.values.SelectionError` for text that is no name of a device.
    """
    texts = [text.strip() for spec in specs for text in str(spec).split(",")]
    return [_name(text) for text in dict.fromkeys(texts)]


def _name(text: str) -> DeviceName:
    found = _FORM.fullmatch(text)
    if found is None or (found[1] in {"auto", "all"} and found[2]):
        msg = (
            f"{text!r} is not a device name; expected TYPE, TYPE:INDEX or TYPE:*, such as cpu, cuda:1 or npu:*, "
            "or auto, or all"
        )
        raise SelectionError(msg)
    return DeviceName(text, found[1], found[2])


def dtype_name(dtype: object) -> str:
    """Return the name of a dtype; raise :class:`SelectionError` for one that the kit does not run in."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPE_NAMES:
        raise SelectionError(_no_dtype(name))
    return name


def _no_dtype(name: str) -> str:
    """Return the message for a dtype that the kit does not run in."""
    whys = [why for kind, why in _OTHER_KINDS.items() if name.startswith(kind)]
    meant = (
        None if whys else _SPELT_SHORT.get(name) or next(iter(difflib.get_close_matches(name, DTYPE_NAMES, n=1)), None)
    )
    hint = f" (did you mean {meant}?)" if meant else ""
    msg = f"unsupported dtype {name!r}{hint}; expected one of {', '.join(DTYPE_NAMES)}, or all"
    return ". ".join([msg, *whys])
