"""The values of the fixtures that run over devices, dtypes, stages and output gradients in a test."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradconform.fixtures.grad_tuples import WRONG_PATTERNS, apply_pattern, draw_output_grads
from gradconform.fixtures.stages import TRAITS, ZOO
from gradconform.fixtures.stages.case import StageCase
from gradconform.run.options import RunOptions
from gradconform.trees import Tree, leaves
from gradconform.trial.materials import Materials, stable_seed
from gradconform.trial.trial import Trial
from gradconform.user_input.values import nearest

from .contract_run import choice_of, extensions

STAGES_MARKER = "gradconform_stages"
PATTERNS_MARKER = "gradconform_patterns"


def parametrize_fixtures(metafunc: pytest.Metafunc, options: RunOptions) -> None:
    """Set the values of a test's fixtures, except those that the test parametrises itself.

    Raises ``CollectError`` for a marker that matches nothing.
    """
    ours = set(metafunc.fixturenames) - _own(metafunc)
    _over_cells(metafunc, ours, options)
    if "gradconform_stage" not in ours:
        return
    try:
        stages = _stages(metafunc)
        if "gradconform_output_grads" not in ours:
            metafunc.parametrize("gradconform_stage", stages, ids=[case.name for case in stages], indirect=True)
            return
        pairs = _with_patterns(metafunc, stages, options.seed)
    except ValueError as error:
        msg = f"{metafunc.definition.nodeid}: {error}"
        raise pytest.Collector.CollectError(msg) from error
    names = ("gradconform_stage", "gradconform_output_grads")
    metafunc.parametrize(names, pairs, ids=[f"{case.name}-{pattern}" for case, pattern in pairs], indirect=True)


def _over_cells(metafunc: pytest.Metafunc, ours: set[str], options: RunOptions) -> None:
    """Run the test on every device and dtype; in pairs if it uses both, because devices differ in dtypes."""
    names = [name for name in ("gradconform_device", "gradconform_dtype") if name in ours]
    if not names or not _several(options):
        return
    cells = choice_of(metafunc.config, options).cells
    columns = {"gradconform_device": 0, "gradconform_dtype": 1}
    values = list(dict.fromkeys(tuple(cell[columns[name]] for name in names) for cell in cells))
    if len(values) > 1:
        metafunc.parametrize(names, values, ids=["-".join(value) for value in values], indirect=True)


def _several(options: RunOptions) -> bool:
    """Return whether the options may name more than one device or dtype."""
    given = (*options.device, *options.dtype)
    return len(given) > 2 or any("," in name or "*" in name or name in {"auto", "all"} for name in given)  # noqa: PLR2004 (one of each)


def _own(metafunc: pytest.Metafunc) -> set[str]:
    """Return the arguments that the test parametrises itself."""
    given = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    return {name.strip() for names in given for name in (names.split(",") if isinstance(names, str) else names)}


def _stages(metafunc: pytest.Metafunc) -> list[StageCase]:
    zoo = [*ZOO.values(), *extensions(metafunc.config).stages]
    mark = metafunc.definition.get_closest_marker(STAGES_MARKER)
    if mark is None:
        return zoo
    without = mark.kwargs.get("without", ())
    dropped = [without] if isinstance(without, str) else without
    for pattern in (*mark.args, *dropped):
        if not any(_matches(case, [pattern]) for case in zoo):
            known = nearest(pattern, {*(case.name for case in zoo), *TRAITS})
            msg = f"marker {STAGES_MARKER}: no stage or trait matches {pattern!r}; nearest: {known}"
            raise ValueError(msg)
    return [case for case in zoo if (not mark.args or _matches(case, mark.args)) and not _matches(case, dropped)]


def _matches(case: StageCase, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in (case.name, *case.traits))


def _with_patterns(metafunc: pytest.Metafunc, stages: Sequence[StageCase], seed: int) -> list[tuple[StageCase, str]]:
    """Return every stage with every pattern of its outputs; wrong patterns only if the marker names them."""
    mark = metafunc.definition.get_closest_marker(PATTERNS_MARKER)
    if mark is None:
        return [(case, pattern) for case in stages for pattern in patterns_of(case, seed)]
    pairs = [
        (case, pattern)
        for case in stages
        for pattern in (*patterns_of(case, seed), *WRONG_PATTERNS)
        if any(fnmatchcase(pattern, glob) for glob in mark.args)
    ]
    if not pairs:
        known = sorted({*WRONG_PATTERNS, *(pattern for case in stages for pattern in patterns_of(case, seed))})
        msg = f"{PATTERNS_MARKER}{mark.args} matches no pattern of these stages; patterns: {', '.join(known)}"
        raise ValueError(msg)
    return pairs


class BuiltStage:
    """A stage of the zoo on one device and in one dtype: the module, and arguments for any number of micro-batches.

    ``case`` describes its special feature (``name``, ``special``, ``traits``). Raises ``NotImplementedError`` for a
    complex stage in a dtype without a complex counterpart.
    """

    def __init__(self, case: StageCase, *, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        self.case, self.device, self.dtype = case, device, dtype
        trial = Trial(stages=(case,), program="F0 B0")
        self._materials = Materials(trial, dtype=dtype, device=device, seed=seed)
        #: The module, in train mode.
        self.module = self.fresh()

    @property
    def name(self) -> str:
        """The stage's name in the zoo."""
        return self.case.name

    @property
    def traits(self) -> frozenset[str]:
        """Its special features, names in ``gradconform.fixtures.stages.TRAITS``."""
        return self.case.traits

    def fresh(self) -> nn.Module:
        """Return another module with the same parameters."""
        return self._materials.stage(0)

    def args(self, mb: int = 0) -> tuple[Any, ...]:
        """Return the arguments of micro-batch ``mb``: the same values at each call, in new leaves."""
        return self._materials.args(0, mb, self.module)

    def __repr__(self) -> str:
        """Return the stage's name and place."""
        return f"<stage {self.name} on {self.device} in {self.dtype}>"


class OutputGrads:
    """Output gradients in one pattern (``normal``, ``none:0``, ``layout:expanded``, …); call it with the outputs."""

    def __init__(self, pattern: str, *, stage: str, device: torch.device, seed: int) -> None:
        self.pattern = pattern
        self._stage, self._device, self._seed = stage, device, seed

    def __call__(self, outputs: Tree, mb: int = 0) -> Any:
        """Return one gradient or None per tensor of ``outputs``, in their structure; in a tuple for a single tensor."""
        seed = stable_seed(self._seed, self._stage, "output_grads", mb)
        return apply_pattern(draw_output_grads(outputs, seed=seed), self.pattern, self._device)

    def __repr__(self) -> str:
        """Return the pattern."""
        return f"<output gradients {self.pattern}>"


def patterns_of(case: StageCase, seed: int) -> list[str]:
    """Return the patterns that apply to the outputs of ``case``: normal values, possible None, unusual layouts."""
    trial = Trial(stages=(case,), program="F0 B0")
    materials = Materials(trial, dtype=torch.float32, device=torch.device("cpu"), seed=seed)
    grads = [grad for _, grad in leaves(materials.output_grads(0, 0))]
    slots = [slot for slot, grad in enumerate(grads) if grad is not None]
    found = ["normal", "zeros", "none:all"]
    if len(slots) > 1:
        found += [f"{word}:{slot}" for word in ("none", "only") for slot in slots]
    drawn = [grad for grad in grads if isinstance(grad, Tensor)]
    if all(grad.dim() > 1 for grad in drawn):
        found.append("layout:transposed")
    if all(grad.dim() > 0 for grad in drawn):
        found.append("layout:strided")
    if all(grad.numel() > 0 for grad in drawn):
        found.append("layout:expanded")
    return found
