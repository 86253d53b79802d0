"""How devices are named: ``cpu``, ``cuda:1``, ``npu:*``, ``auto``, ``all``. There is no list of known ones."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from gradconform.naming import SelectionError, nearest

#: The dtypes that a run can be asked for.
DTYPE_NAMES = ("float64", "float32", "bfloat16", "float16")

#: As torch spells devices; the type is whatever torch, or a plugin, makes of it.
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
        """Whether devices are to be found, rather than one is named."""
        return "auto" if self.text == "auto" else "all" if self.text == "all" else None


def device_names(specs: Iterable[object]) -> list[DeviceName]:
    """Return the names in ``specs``, each once; commas separate several in one.

    Raises :class:`~gradconform.naming.SelectionError` for what is no name of a device.
    """
    texts = [text.strip() for spec in specs for text in str(spec).split(",")]
    return [_name(text) for text in dict.fromkeys(texts)]


def _name(text: str) -> DeviceName:
    found = _FORM.fullmatch(text)
    if found is None or (found[1] in {"auto", "all"} and found[2]):
        msg = (
            f"device {text!r} is no name of a device; expected TYPE, TYPE:INDEX or TYPE:* as torch spells types, "
            "such as cpu, cuda:1 or npu:*, or auto, or all"
        )
        raise SelectionError(msg)
    return DeviceName(text, found[1], found[2])


def dtype_name(dtype: object) -> str:
    """Return the name of a dtype; raise :class:`SelectionError` for one that the kit does not run in."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPE_NAMES:
        msg = f"dtype {name!r} is not one the contract runs in; expected one of {nearest(name, DTYPE_NAMES)}"
        if name.startswith("complex"):
            msg += ". Its complex stages run in complex64 with float32, and in complex128 with float64"
        raise SelectionError(msg)
    return name
