"""Writes a training step as one Python file for torchrun, which needs only torch and the target."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from gradconform.devices.dtypes import dtype_named
from gradconform.pipeline.training_step import model
from gradconform.pipeline.training_step.composition import Composition, StepCase, unclaimed_values
from gradconform.pipeline.training_step.gathering import nearest_last
from gradconform.pipeline.training_step.on_rank import Place, spec_of
from gradconform.pipeline.training_step.oracle import LR
from gradconform.pipeline.training_step.runtimes import ENTRY_POINTS, TORCH
from gradconform.reference.runtime import LOWER
from gradconform.runtime import StepSpec
from gradconform.target.lookup import registered
from gradconform.target.resolve import registered_targets
from gradconform.tolerance import floor_factor
from gradconform.version import KIT_VERSION

from . import standalone_step
from .folding import Folding, unparsed
from .layout import docstring, merged, spaced
from .script import ScriptError
from .source import reached
from .torch_runtime import imports_of_torch, known_of_torch, session_of_torch, spelled_out

#: The kit's modules that a script imports if it runs an adapter of a runtime.
_INTERFACE = frozenset({"gradconform.runtime"})
#: Methods that torch or the interface calls on a class; classes with one of them are imported.
_CALLED = frozenset({"forward", "backward", "named", "update_bias"})
#: The expression for a batch's keyword arguments.
_KEYWORDS = "dict(_keywords(composition, rows, replica, generator, dtype))"
_IMPORTS = {
    "SimpleNamespace": "from types import SimpleNamespace",
    "StepSpec": "from gradconform.runtime import StepSpec",
    "functions": "from torch.distributed.pipelining import stage as of_torch",
    "importlib": "import importlib",
}


@dataclass(frozen=True, kw_only=True)
class ReplayedStep:
    """The contents of a script: a training step on a target, as it was run.

    ``implementation`` is the target's place, ``module`` or ``module:object``; it is empty for torch's own runtime.
    ``runtime`` says that it is a runtime, rather than functions that replace torch's.
    """

    case: StepCase
    name: str
    implementation: str
    runtime: bool
    device: str
    dtype: str
    seed: int

    def text(self, file: str) -> str:
        """Return the script, which will be stored in ``file``."""
        made = self._composition
        counted = self._is_adapter or made.reduction == "tokens"
        entries: dict[str, set[str]] = {
            "ACTS": {*made.steps},
            "_STYLES": {*self._specs[0].shared.values()},
            "forwards": {made.experts},
        }
        parts = reached(
            [
                *((model, name) for name in (self._loss.partition("(")[0], *(["counts"] if counted else []))),
                *([] if self._is_adapter else [session_of_torch(made)]),
                (standalone_step, "main"),
            ],
            Folding(self._known(), entries, _CALLED, self._instead()),
            _INTERFACE if self._is_adapter else frozenset(),
        )
        text = "\n".join(parts.definitions.values())
        opened = self._opened(text)
        head = [self._docstring(file), "", "from __future__ import annotations", ""]
        constants = [_assigned(name, value) for name, value in self._constants(text).items()]
        head += [*merged(parts.imports | self._imports("\n".join([text, opened, *constants]))), "", *constants]
        run = 'if __name__ == "__main__":\n    sys.exit(main())\n'
        return "\n\n\n".join(["\n".join(head), *spaced(parts.definitions.values()), opened, run])

    @cached_property
    def _composition(self) -> Composition:
        return self.case.composition

    @property
    def _is_adapter(self) -> bool:
        """Whether the runtime is a user's adapter, which is imported."""
        return self.runtime and bool(self.implementation)

    @cached_property
    def _specs(self) -> list[StepSpec]:
        """Return the runtime's descriptions of the step, by rank."""
        given: dict[str, Any] = {"device": torch.device(self.device), "dtype": dtype_named(self.dtype)}
        given |= {"seed": self.seed, "note": str, "within": nullcontext}
        return [spec_of(self._composition, Place(rank=rank, **given)) for rank in range(self._composition.ranks)]

    @property
    def _loss(self) -> str:
        """Return the loss as text: its name, or the expression that makes it."""
        return str(getattr(self._specs[0].loss, "__name__", f"{model.loss_of.__name__}(composition)"))

    @property
    def needs(self) -> str:
        """Return the script's imports outside the standard library."""
        module = self.implementation.partition(":")[0]
        more = [module, "gradconform.runtime, which that is written against"] if self._is_adapter else [module]
        return " and ".join(["torch", *filter(None, more)])

    def command(self, path: str) -> str:
        """Return the command that runs the script."""
        return f"torchrun --nproc-per-node {self._composition.ranks} {shlex.quote(path)}"

    def _docstring(self, file: str) -> str:
        run = f"with torch {torch.__version__} on {self.name}: {self.device} {self.dtype}, seed {self.seed}"
        exits = "It exits with 1 if a rank differs from one plain process, and with 0 otherwise."
        others = "It also reports errors of torch's runtime that occur with any functions."
        paragraphs = [
            self.case.requirement,
            f"This is {self.case.id} ({self.case.level}), as gradconform {KIT_VERSION} ran it {run}. Run it by",
            f"    {self.command(file)}",
            f"{exits} It needs {self.needs}.{'' if self.runtime else f' {others}'}",
        ]
        return docstring(paragraphs)

    def _imports(self, text: str) -> set[str]:
        named = {line for name, line in {**_IMPORTS, **imports_of_torch(self._composition)}.items() if name in text}
        return {"import os", "import torch", *named}

    def _known(self) -> dict[str, Any]:
        """Return the values of expressions, by their text, that do not change while the script runs."""
        made, spec = self._composition, self._specs[0]
        names = [one.name for one in fields(StepSpec)] + ["stages", "is_first", "is_last"]
        alike = [name for name in names if all(getattr(one, name) == getattr(spec, name) for one in self._specs)]
        return {
            **{f"composition.{name}": getattr(made, name) for name in [one.name for one in fields(made)]},
            **{f"{owner}.{name}": getattr(spec, name) for owner in ("spec", "self.spec") for name in alike},
            **({} if made.lengths else {"self.lengths": ()}),
            **({} if made.hooked else {"self.calls is not None": False}),
            "self.layers": made.layers,
            "self.auxiliary is None": not made.auxiliary,
            "scale is None": not made.keyword,
            "seeds is not None": made.layers == "dropout",
            "self.attention is not None": made.context != "whole",
            "DIVIDED": made.context != "whole" and made.reduction == "mean",
            "composition.has_auxiliary": made.has_auxiliary,
            "self.mixture is not None": bool(made.experts),
            **({} if made.predicts_two else {"self.second is not None": False}),  # only the last stage has one
            "last.second is not None": made.predicts_two,
            "self.occasional is not None": bool(made.use),
            "used is not None": bool(made.use),
            "self.dropping": made.routing == "dropped",
            "self.summed": made.reduction == "tokens",
            "routing": made.routing,
            "composition.batches": made.batches,
            "BALANCES": bool(made.experts) and "update" in made.steps,
            "BUFFERS": made.layers == "batch-norm" or made.hooked or bool(made.experts),
            "EVALUATES": "evaluate" in made.steps,
            "GROWS": self._is_adapter and made.steps.count("train") > 1,
            "IN_PARTS": self._is_adapter or made.tensor_ranks > 1 or made.data_parallel.startswith(("fsdp", "hsdp")),
            "ON_CPU": self.device == "cpu",
            "REPLACED": not self.runtime,
            "ROUNDED": made.precision != "unmixed",
            "SHARED": self._is_adapter or len(self._peers[0]) > 1,
            "UNREDUCED": "accumulate" in made.steps,
            "UNUSED": bool(made.use),
            "ZEROS": self._is_adapter and "zero_grad" in made.steps,
            "tallied": made.auxiliary and made.precision == "mixed",
            "self.tally is not None": made.precision == "mixed",
            # Conditions that torch's runtime does not need to test.
            **({} if self._is_adapter else {"isinstance(value, Shard)": False, **known_of_torch(made)}),
        }

    def _instead(self) -> dict[str, str]:
        """Return the replacements of expressions, by their text."""
        made = self._composition
        # Batches without keyword arguments draw none.
        drawn = made.keyword or made.layers == "dropout" or made.experts or made.predicts_two
        none = {} if drawn else {_KEYWORDS: "{}"}
        return none if self._is_adapter else none | spelled_out(made)

    @property
    def _peers(self) -> list[tuple[int, ...]]:
        """Return the ranks with the same stages as a rank, by rank."""
        of_rank = [spec.pipeline_rank for spec in self._specs]
        return [tuple(rank for rank, other in enumerate(of_rank) if other == own) for own in of_rank]

    def _constants(self, text: str) -> dict[str, str]:
        dtype = dtype_named(self.dtype)
        made = {name: repr(getattr(self._composition, name)) for name in _read("composition", text)}
        known = {
            "composition": _call("SimpleNamespace", made),
            "RANK": 'int(os.environ["RANK"])',
            "LR": repr(LR),
            "OWN_STAGES": _by_rank([spec.placement[spec.pipeline_rank] for spec in self._specs]),
            "PEERS": _by_rank(self._peers),
            "NEAREST_LAST": _by_rank([tuple(nearest_last(spec)) for spec in self._specs]),
            "DTYPE": str(dtype),
            "SEED": str(self.seed),
            "TOLERANCE": f"{_tolerance(dtype)}",
            "ROUNDING": f"{_tolerance(LOWER)}",
        }
        return {name: value for name, value in known.items() if name == "RANK" or re.search(rf"\b{name}\b", text)}

    def _opened(self, text: str) -> str:
        """Return the runtime's description, and the code that opens it."""
        names = _read("spec", text) if not self._is_adapter else [one.name for one in fields(StepSpec)]
        described = {name: self._described(name) for name in names if name != "note"}
        lines = [_assigned("spec", _call("StepSpec" if self._is_adapter else "SimpleNamespace", described))]
        if self.implementation:
            where, _, attribute = self.implementation.partition(":")
            target = f"importlib.import_module({where!r}){f'.{attribute}' if attribute else ''}"
        if self._is_adapter:
            lines += [f"target = {target}", "open_session = (target() if isinstance(target, type) else target).open"]
        else:
            lines.append(f"open_session = {session_of_torch(self._composition)[1]}")
        if not self.runtime:
            lines += ["", "", "def put_in_place():", f"    functions = {target}"]
            lines += ["    for name in ('stage_backward', 'stage_backward_input', 'stage_backward_weight'):"]
            lines += [
                "        if hasattr(functions, name):",
                "            setattr(of_torch, name, getattr(functions, name))",
            ]
        return "\n".join(lines)

    def _described(self, name: str) -> str:
        spec = self._specs[0]
        if name == "loss":
            return self._loss
        if name == "counts":
            return str(spec.counts.__name__)
        if name == "device":
            numbered = spec.device.type == "cpu" or spec.device.index is not None
            local = "" if numbered else ', int(os.environ["LOCAL_RANK"])'
            return f"torch.device({self.device!r}{local})"
        return _by_rank([getattr(one, name) for one in self._specs])


def where_is(target: str, *, runtime: bool) -> str:
    """Return a script's name for a target, a module or the user's file; empty for torch's own runtime."""
    of_runtimes = registered(ENTRY_POINTS)
    if runtime and of_runtimes.get(target, target) == of_runtimes[TORCH]:
        return ""
    named = (of_runtimes if runtime else registered_targets()).get(target, target)
    head, colon, attribute = named.rpartition(":")
    where = head if colon else attribute
    return f"{Path(where).stem if where.endswith('.py') else where}{colon}{attribute if colon else ''}"


def refuse_unwritten(case: StepCase, claims: Mapping[str, Collection[str]]) -> None:
    """Raise :class:`ScriptError` for a training step that the runtime does not claim."""
    if values := unclaimed_values(case, claims):
        msg = f"{case.id}: the runtime does not claim {values}, so a script would show nothing"
        raise ScriptError(msg)


def _tolerance(dtype: torch.dtype) -> float:
    """Return the tolerance of a tensor, as a part of its largest number: sums on the way may have been larger."""
    return 4 * floor_factor(dtype) * torch.finfo(dtype).eps


def _read(owner: str, text: str) -> list[str]:
    """Return the attributes of a name that a text reads."""
    return list(dict.fromkeys(re.findall(rf"\b{owner}\.(\w+)", text)))


def _by_rank(values: Sequence[Any]) -> str:
    """Return a value as text, indexed by rank if the ranks differ."""
    return repr(values[0]) if all(value == values[0] for value in values) else f"{list(values)!r}[RANK]"


def _call(name: str, given: dict[str, str]) -> str:
    return f"{name}({', '.join(f'{key}={value}' for key, value in given.items())})"


def _assigned(name: str, value: str) -> str:
    """Return the line that assigns a value to a name, wrapped if it is long."""
    return unparsed(ast.parse(f"{name} = {value}").body[0])
