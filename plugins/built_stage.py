"""What ``gradconform_stage`` and ``gradconform_output_grads`` hand to a test."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gradconform.fixtures.grad_tuples import apply_pattern, draw_output_grads
from gradconform.fixtures.stages.case import StageCase
from gradconform.fixtures.trees import Tree, leaves
from gradconform.materials import Materials, stable_seed
from gradconform.trial import Trial


class BuiltStage:
    """A stage of the zoo on one device, in one dtype: the module, and arguments for as many micro-batches as asked for.

    ``case`` says what is special about it (``name``, ``special``, ``traits``). Raises ``NotImplementedError`` for a
    complex stage in a dtype that has no complex counterpart.
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
        """What is special about it, as ``gradconform.fixtures.stages.TRAITS`` lists it."""
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
        """Return one gradient or None per tensor of ``outputs``, in their structure (a tuple, of a lone one)."""
        seed = stable_seed(self._seed, self._stage, "output_grads", mb)
        return apply_pattern(draw_output_grads(outputs, seed=seed), self.pattern, self._device)

    def __repr__(self) -> str:
        """Return the pattern."""
        return f"<output gradients {self.pattern}>"


def patterns_of(case: StageCase, seed: int) -> list[str]:
    """Return the patterns that have a meaning for the outputs of ``case``: None where there can be one, odd layouts."""
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
