"""The materials of a trial: random values, drawn once on the CPU and rounded, then returned as fresh copies.

The implementation and plain autograd get equal copies of one draw, so the implementation causes any later difference.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from gradconform.devices.device import cpu_rng_state, device_of
from gradconform.fixtures.grad_tuples import (
    WRONG_PATTERNS,
    apply_pattern,
    draw_output_grads,
    one_for_alike,
    pattern_of,
)
from gradconform.fixtures.inputs import draw_arguments, place_arguments, turns
from gradconform.fixtures.stages.case import StageCase
from gradconform.trees import Tree, as_tuple, leaves, map_leaves, tensors

from .bounded import bytes_of
from .modes import OF_FORWARD, call_in
from .trial import Trial


def stable_seed(*parts: object) -> int:
    """Return a seed that depends only on ``parts``, not on the process or the order of the run."""
    return zlib.crc32("/".join(map(str, parts)).encode())


#: Added to the number of a micro-batch for the values of a forward that gets no backward; it is even, so that both have
#: the same number of rows.
_LOST = 1000

#: Added to a seed for the targets of a loss, which are drawn as output gradients are.
_TARGETS = 1_000_003

_CPU = torch.device("cpu")

T = TypeVar("T")

#: Drawn values of more bytes are freed with the materials of their trial, and are not kept for later trials.
_LARGE = 2**15

#: How many drawn values of each sort are kept. Checks that read the same ones are near each other: eight times as many
#: would save a twentieth of the draws.
_KEPT = 256


class _LargeError(Exception):
    """Drawn values are too large to be kept; a cache stores nothing for a call that raises."""

    def __init__(self, values: Any) -> None:
        """Store the values."""
        super().__init__("too large to be kept")
        self.values = values


class Materials:
    """The inputs of a trial, as copies for one dtype, device and seed."""

    def __init__(self, trial: Trial, *, dtype: torch.dtype, device: torch.device, seed: int) -> None:
        """Create materials; each part is drawn at its first use, from its own seed."""
        self.trial, self.dtype, self.device = trial, dtype, device
        #: The given seed; ``seed`` is that of the trial's own draw.
        self.given_seed = seed
        self.seed = stable_seed(seed, "draw", trial.draw) if trial.draw else seed
        self._example_args: dict[int, tuple[Any, ...]] = {}
        self._prior: dict[int, list[Tensor]] = {}
        self._large: dict[tuple[Any, ...], Any] = {}
        self._modes = trial.modes & OF_FORWARD

    def on(self, device: torch.device, trial: Trial) -> Materials:
        """Return materials for another device or trial, which share the large drawn values of these."""
        found = Materials(trial, dtype=self.dtype, device=device, seed=self.given_seed)
        found._large = self._large
        return found

    def seed_of(self, lane: int) -> int:
        """Return the seed of one stage: two stages of one kind are not equal, so a mix-up is visible."""
        return self.seed + lane

    def stage_seed(self, lane: int) -> int:
        """Return the seed of the module of one stage, which several stages may share."""
        return self.seed_of(0 if self.trial.one_module else lane)

    def stage(self, lane: int) -> nn.Module:
        """Return a new module for ``trial.stages[lane]``, with prior gradients if the trial requires them."""
        module = self.trial.stages[lane].make(dtype=self.dtype, device=self.device, seed=self.stage_seed(lane))
        if self.trial.prior_grads:
            for parameter, grad in zip(module.parameters(), self.prior(lane), strict=True):
                if parameter.requires_grad:
                    parameter.grad = grad.to(self.device, copy=True)
        return module.eval() if "eval" in self.trial.modes else module

    def prior(self, lane: int) -> list[Tensor]:
        """Return the gradients (on the CPU) that the parameters have before the first action."""
        return [grad.clone() for grad in self._drawn_prior(lane)]

    def prior_of(self, lane: int, position: int) -> Tensor:
        """Return the prior gradient of one parameter; the diagnosis needs single ones of many."""
        return self._drawn_prior(lane)[position].clone()

    def _drawn_prior(self, lane: int) -> list[Tensor]:
        if lane not in self._prior:
            self._prior[lane] = self._draw_prior(lane)
        return self._prior[lane]

    def _draw_prior(self, lane: int) -> list[Tensor]:
        seed = self.stage_seed(lane)
        module = self.trial.stages[lane].make(dtype=self.dtype, device=torch.device("cpu"), seed=seed)
        generator = torch.Generator().manual_seed(stable_seed(seed, "prior"))
        return [
            torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter.dtype)
            for parameter in module.parameters()
        ]

    def args(self, lane: int, mb: int, stage: nn.Module) -> tuple[Any, ...]:
        """Return fresh leaves for the arguments of micro-batch ``mb``."""
        turn = 0 if self.trial.same_args else mb  # as below, without its call
        drawn = self._drawn_args(lane, turn)
        return place_arguments(self.trial.stages[lane].inputs, drawn, stage, self.device, turn)

    def turn(self, mb: int) -> int:
        """Return the micro-batch that has the arguments of ``mb``."""
        return 0 if self.trial.same_args else mb

    def lost_args(self, lane: int, mb: int, stage: nn.Module) -> tuple[Any, ...]:
        """Return arguments with other values than those of ``mb``, for a forward of that number without a backward."""
        return self.args(lane, mb + _LOST, stage)

    def example_args(self, lane: int, stage: nn.Module) -> tuple[Any, ...]:
        """Return arguments for their shapes, dtypes and need of a gradient; no forward and no parameter uses them."""
        if lane not in self._example_args:
            self._example_args[lane] = tuple(
                arg.detach().clone().requires_grad_(arg.requires_grad) if isinstance(arg, nn.Parameter) else arg
                for arg in self.args(lane, 0, stage)
            )
        return self._example_args[lane]

    def output_grads(self, lane: int, mb: int, *, misuse: bool = False) -> Tree:
        """Return fresh output gradients of micro-batch ``mb``, as the trial's pattern says.

        Only misuses (``B1!``) receive a wrong pattern; the other actions of the program get right gradients.
        """
        mb = 0 if self.trial.received == "once" else mb
        grads = self._drawn_grads(lane, mb, self.seed + lane)
        pattern = pattern_of(self.trial.output_grads, mb)
        given = apply_pattern(grads, "normal" if pattern in WRONG_PATTERNS and not misuse else pattern, self.device)
        return one_for_alike(given) if self.trial.received == "twice" else given

    def hand_grads(self, lane: int, mb: int) -> tuple[Tensor | None, ...]:
        """Return the gradient tuple that G sets in a weight context: one entry per output of the last node."""
        grads = [grad for _, grad in leaves(self.output_grads(lane, mb))]
        return tuple(grad if here else None for grad, here in zip(grads, self.trial.hand_grads, strict=True))

    def target(self, lane: int, mb: int) -> Tree:
        """Return the target of the loss for micro-batch ``mb``: values like the outputs'."""
        pattern = pattern_of(self.trial.output_grads, mb)
        read = pattern if pattern.startswith(("none:", "only:")) else "normal"
        return apply_pattern(self._drawn_grads(lane, mb, self.seed + lane + _TARGETS), read, self.device)

    def example_outputs(self, lane: int) -> Tree:
        """Return the outputs of a first forward, for shapes, dtypes and which of them need a gradient."""
        case = self.trial.stages[lane]
        return map_leaves(bare, self._drawn(_example_outputs, case, self.dtype, self.given_seed, self._modes))

    def rng_seed(self, mb: int) -> int:
        """Return the seed of all generators with which every forward of ``mb`` starts."""
        return stable_seed(self.seed, "rng", mb)

    def forget(self) -> None:
        """Free the tensors on the device."""
        self._example_args.clear()

    def draw_all(self) -> None:
        """Draw the values of every micro-batch now: later draws are stored, and would count as growth."""
        for action in self.trial.actions:
            if action.kind == "F":
                self.drawn(action.stage, action.mb)
                draw = self.target if self.trial.loss_at(action.stage) else self.output_grads
                draw(action.stage, action.mb)
                cpu_rng_state(self.rng_seed(action.mb))

    def drawn(self, lane: int, mb: int) -> tuple[Tensor | None, ...]:
        """Return the drawn values for the arguments of ``mb``: CPU tensors, None if nothing is random."""
        return self._drawn_args(lane, self.turn(mb))

    def _drawn_args(self, lane: int, turn: int) -> tuple[Tensor | None, ...]:
        less = turn % 2 if self.trial.ragged else 0
        found: tuple[Tensor | None, ...] = self._drawn(
            _drawn_arguments, self.trial.stages[lane], self.dtype, self.seed + lane, turn, less
        )
        return found

    def _drawn_grads(self, lane: int, mb: int, seed: int) -> Tree:
        less = mb % 2 if self.trial.ragged else 0
        case, example_seed = self.trial.stages[lane], self.given_seed
        return self._drawn(_drawn_output_grads, case, self.dtype, (seed, example_seed), mb, self._modes, less)

    def _drawn(self, draw: Callable[..., Any], *given: Hashable) -> Any:
        """Return drawn values; large ones are freed with these materials."""
        if self._large and (draw, given) in self._large:
            return self._large[draw, given]
        try:
            return draw(*given)
        except _LargeError as large:
            self._large[draw, given] = large.values
            return large.values


def mean_squares(outputs: Tree, target: Tree) -> Tensor:
    """Return the sum over outputs of mean |output - target|², a real 0-d tensor: the loss of loss-driven trials.

    If ``target`` holds None (an output that needs no gradient, or that the loss does not read), the output does not
    count.
    """
    losses = [
        (output - wanted).abs().square().mean() if output.is_complex() else torch.nn.functional.mse_loss(output, wanted)
        for output, (_, wanted) in zip(tensors(as_tuple(outputs)), _tensor_slots(outputs, target), strict=True)
        if wanted is not None
    ]
    return losses[0] if len(losses) == 1 else torch.stack(losses).sum()


def _tensor_slots(outputs: Tree, target: Tree) -> list[tuple[str, Any]]:
    """Return the entry of ``target`` for each tensor of ``outputs`` by path, whatever the order of a dict's keys."""
    found, slots = leaves(as_tuple(outputs)), leaves(as_tuple(target))
    by_path = dict(slots)
    if by_path.keys() == dict(found).keys():
        slots = [(path, by_path[path]) for path, _ in found]
    return [slot for (_, output), slot in zip(found, slots, strict=True) if isinstance(output, Tensor)]


@lru_cache(maxsize=_KEPT)
def _drawn_arguments(
    case: StageCase, dtype: torch.dtype, seed: int, mb: int, less: int = 0
) -> tuple[Tensor | None, ...]:
    """Return the drawn arguments of a micro-batch, without the last ``less`` rows of each tensor."""
    # Three lists for each seed, so that the micro-batches of a stage and of the next one differ.
    own = 3 * seed + mb if case.listed else stable_seed(seed, case.name, "args", mb)
    drawn = draw_arguments(case.inputs, seed=own, dtype=dtype, mb=mb)
    return _small(tuple(one if one is None else one[: len(one) - less] for one in drawn) if less else drawn)


@lru_cache(maxsize=_KEPT)
def _example_outputs(  # noqa: PLR0913, PLR0917 (outputs depend on all of them)
    case: StageCase, dtype: torch.dtype, seed: int, modes: frozenset[str], less: int = 0, mb: int = 0
) -> Tree:
    stage = case.make(dtype=dtype, device=_CPU, seed=seed)
    if "eval" in modes:
        stage.eval()
    drawn = _of_any_size(_drawn_arguments, case, dtype, seed, mb, less)
    args = place_arguments(case.inputs, drawn, stage, _CPU, mb)
    with device_of(_CPU).generators_kept():
        outputs = call_in(modes, "F", _CPU, lambda: stage(*args))
    return _small(map_leaves(bare, outputs))


def _small(values: T) -> T:
    """Return values to keep; raise :class:`_LargeError` for large ones, so that no cache keeps them."""
    if bytes_of(values) > _LARGE:
        raise _LargeError(values)
    return values


def _of_any_size(draw: Callable[..., Any], *given: Hashable) -> Any:
    try:
        return draw(*given)
    except _LargeError as large:
        return large.values


def bare(leaf: Any) -> Any:
    """Return a tensor of the same shape, dtype and need of a gradient that holds no graph."""
    if not isinstance(leaf, Tensor):
        return leaf
    return torch.zeros_like(leaf).detach().requires_grad_(leaf.requires_grad)


@lru_cache(maxsize=_KEPT)
def _drawn_output_grads(  # noqa: PLR0913, PLR0917 (a draw depends on all of them)
    case: StageCase, dtype: torch.dtype, seeds: tuple[int, int], mb: int, modes: frozenset[str], less: int
) -> Tree:
    """Return drawn output gradients: the first of the ``seeds`` is for their values, the other for the example."""
    seed, example_seed = seeds
    example = _of_any_size(_example_outputs, case, dtype, example_seed, modes, less, mb % turns(case.inputs))
    return _small(draw_output_grads(example, seed=stable_seed(seed, case.name, "output_grads", mb)))
