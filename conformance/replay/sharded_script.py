"""Writes a row of a sharded stage as one Python file for torchrun, which needs only torch and the user's code."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gradconform.devices.dtypes import dtype_named
from gradconform.sharded.batches import STEPS
from gradconform.sharded.cases import RowCheck, mesh_of
from gradconform.sharded.dimensions import ORDERS
from gradconform.tolerance import floor_factor
from gradconform.version import KIT_VERSION

from . import standalone_sharded
from .folding import Folding
from .layout import docstring, merged, spaced
from .script import ScriptError
from .source import reached

#: What a script compares, by the kind of its check.
_COMPARED = {
    "program": "outputs, gradients and parameters are",
    "outputs": "the outputs are",
    "input-gradients": "the gradients of the arguments are",
    "gradients": "the gradients of the parameters are",
    "copies": "each copy is",
    "steps": "the parameters are",
    "norm": "the norm is",
    "buffers": "the buffers are",
}


@dataclass(frozen=True, kw_only=True)
class ReplayedRow:
    """The contents of a script: a row of a sharded stage, as it was run under plain autograd.

    ``target`` is the user's name of the stage, and ``options`` are its arguments as text. ``members`` are the optional
    members that it has, ``one_output`` says whether it returns one tensor, and
    ``dtensors`` whether any parameter may be a DTensor.
    """

    check: RowCheck
    target: str
    options: Mapping[str, str]
    members: frozenset[str]
    one_output: bool
    dtensors: bool
    device: str
    dtype: str
    seed: int

    @property
    def command(self) -> str:
        """The beginning of the command that runs the script."""
        return f"torchrun --nproc-per-node {mesh_of(self.check.row).ranks}"

    def text(self, file: str) -> str:
        """Return the script, which will be stored in ``file``."""
        source = reached([(standalone_sharded, "main")], Folding(self._known(), {}, frozenset({"__func__"})))
        where, _, name = self.target.rpartition(":")
        module = Path(where).stem if where.endswith(".py") else where
        imports = {
            *source.imports, "import sys", "import torch", "import torch.distributed as dist",
            "from torch.distributed.device_mesh import init_device_mesh",
            f"from {module} import {name.partition('.')[0]}",
        }  # fmt: skip
        sizes = dict(self.check.row.mesh)
        row, what = self.check.row, _COMPARED[self.check.kind]
        constants = [
            f"stage = {name}({', '.join(f'{key}={value}' for key, value in self.options.items())})",
            "dist.init_process_group()" if self.device != "cpu" else 'dist.init_process_group("gloo")',
            f"SIZES = {sizes!r}",
            f"MESH = init_device_mesh({self.device!r}, {(*sizes.values(),)!r}, mesh_dim_names={(*sizes,)!r})",
            "HERE = dict(zip(SIZES, MESH.get_coordinate() or ()))",
            f"PROGRAM = {ORDERS[row.order]!r}",
            f"DEVICE, DTYPE, SEED = {self.device!r}, {dtype_named(self.dtype)}, {self.seed}",
            f"STEPS, MICROBATCHES, WHAT = {STEPS if self._several_steps else 1}, {row.microbatches}, {what!r}",
            f"TOLERANCE = {64.0 * floor_factor(dtype_named(self.dtype)) * torch.finfo(dtype_named(self.dtype)).eps}",
        ]
        head = [self._docstring(file), "", *merged(imports), "", *constants]
        run = 'if __name__ == "__main__":\n    sys.exit(main())\n'
        return "\n\n\n".join(["\n".join(head), *spaced(source.definitions.values()), run])

    def _docstring(self, file: str) -> str:
        ran = f"with torch {torch.__version__} on {self.device} {self.dtype}, seed {self.seed}"
        exits = "It exits with 1 if a rank differs from the whole stage, and with 0 otherwise."
        paragraphs = [
            self.check.requirement,
            f"This is {self.check.id} ({self.check.level}), as gradconform {KIT_VERSION} ran it {ran}. Run it by",
            f"    {self.command} {shlex.quote(file)}",
            f"{exits} It needs torch and {self.target.rpartition(':')[0]}.",
        ]
        return docstring(paragraphs)

    @property
    def _several_steps(self) -> bool:
        return self.check.kind in {"program", "copies", "steps"}

    def _known(self) -> dict[str, Any]:
        """Return the values of names that do not change while the script runs."""
        row, kind, members = self.check.row, self.check.kind, self.members
        everything = kind == "program"
        return {
            "CHECKPOINT": row.checkpoint,
            "CLIPS": "grad_norm" in members and self._several_steps,
            "DTENSORS": self.dtensors,
            "EXPANDED": row.output_grads == "expanded",
            "FINISHES": "finish" in members,
            "FIRST_IS_NONE": row.output_grads == "none",
            "FROZEN": bool(row.frozen),
            "FIRST_FROZEN": row.frozen == "first",
            "ONE_OUTPUT": self.one_output,
            "PLACED_ARGS": "arg_placements" in members,
            "PLACED_GRADS": "arg_grad_placements" in members,
            "PLACED_OUTPUTS": "output_placements" in members,
            "PLACED_OUTPUT_GRADS": "output_grad_placements" in members,
            "RENAMED": "whole_names" in members,
            "SEVERAL_STEPS": self._several_steps,
            "SPLIT": "I" in ORDERS[row.order],
            "STANDING": bool(row.standing),
            "ZEROS": row.standing == "zeros",
            "OUTPUTS": everything or kind == "outputs",
            "INPUTS": everything or kind == "input-gradients",
            "GRADIENTS": everything or kind == "gradients",
            "PARAMETERS": everything or kind == "steps",
            "NORM": kind == "norm",
            "COPIES": kind == "copies",
            "BUFFERS": kind == "buffers",
        }


def literal_options(options: Mapping[str, int], values: Mapping[str, list[str]], check: str) -> dict[str, str]:
    """Return the options of a row as text; raise :class:`ScriptError` for a value that text cannot give."""
    found = {name: values[name][place] for name, place in options.items()}
    for name, text in found.items():
        if text.startswith("<"):
            msg = f"{check}: option {name!r} has the value {text}, which a script cannot write; use plain values"
            raise ScriptError(msg)
    return found
