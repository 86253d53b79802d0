"""Stage objects: a framework's wrappers of a stage, with caches and transfers of their own, in one process.

This module has the subject: stages that are manual (around a module) and traced (cut out of a model).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

from torch import Tensor, nn

from gradconform.target.lookup import TargetError
from gradconform.target.resolve import load_registered

ENTRY_POINTS = "gradconform.pipeline.stage_objects"

#: Returns a function that computes the weight gradients that a backward has postponed.
DwBuilder = Callable[[], Callable[[], None]]


class StageObject(Protocol):
    """One stage. Micro-batches are numbered from 0; actions raise the implementation's own errors."""

    @property
    def module(self) -> nn.Module:
        """Return the module whose parameters hold the gradients; names are those of the model it was cut from."""

    def forward(self, mb: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run F; ``args`` are those of the first stage, and the others use the values that they took."""

    def take(self, mb: int, outputs: Any) -> None:
        """Take the outputs of the previous stage as this stage's arguments."""

    def backward(self, mb: int, loss: Tensor | None, *, full: bool) -> None:
        """Run B, or I; ``loss`` is given to the last stage, and the others use the gradients that they took."""

    def take_grads(self, mb: int, behind: StageObject) -> None:
        """Take the input gradients of the next stage as this stage's output gradients."""

    def weight(self, mb: int) -> None:
        """Run W."""

    def kept(self) -> Mapping[str, int]:
        """Return the number of entries in each of the stage's caches."""

    def clear(self) -> None:
        """Reset the stage between two steps."""


class StageObjects(Protocol):
    """Creates the stage objects of a framework. ``checked`` requires validation of inputs and outputs."""

    name: str

    def manual(
        self,
        modules: Sequence[nn.Module],
        example: tuple[Any, ...],
        microbatches: int,
        *,
        dw_builders: Sequence[DwBuilder] | None = None,
        checked: bool = False,
    ) -> Sequence[StageObject]:
        """Return a chain of stages around modules; ``example`` are the arguments of the first, on their device."""

    def traced(
        self,
        model: nn.Module,
        cuts: Sequence[str],
        example: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        microbatches: int,
    ) -> Sequence[StageObject]:
        """Return the stages of a model that is cut before the submodules named in ``cuts``."""

    def split_schedule(self, stages: Sequence[StageObject], microbatches: int) -> object:
        """Return a schedule that splits the backward of these stages; raise if it does not support them."""


def stage_objects_named(target: str) -> StageObjects:
    """Return the adapter of a registered name (entry-point group ``gradconform.pipeline.stage_objects``) or an object.

    Raises :class:`~gradconform.target.loading.TargetError` if it cannot be found or makes no stages.
    """
    made = load_registered(target, ENTRY_POINTS)
    missing = [name for name in ("name", "manual", "traced", "split_schedule") if not hasattr(made, name)]
    if missing:
        wanted = "a name, manual and traced, which make stages, and split_schedule"
        msg = f"target {target!r} has no {missing[0]}; expected {wanted}"
        raise TargetError(msg)
    return cast("StageObjects", made)
