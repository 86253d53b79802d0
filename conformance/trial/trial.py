"""Trials: stages, one program, and their inputs. A trial is run once and judged by many checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gradconform.fixtures.grad_tuples import gives_none
from gradconform.fixtures.stages.case import StageCase

from .modes import AUTOCAST, MODES, NEEDED_BY
from .program import (
    CHANGES,
    OF_ONE,
    REPLACEMENTS,
    ZEROES,
    Action,
    ProgramError,
    Standing,
    in_flight,
    microbatches,
    needs,
    parse,
    standing,
)

#: The tensors that a caller may receive into; the alternative is new ones each time.
RECEIVED = {
    "inputs": "arguments arrive in the refilled tensors of a finished micro-batch",
    "grads": "output gradients arrive in the refilled tensors of a finished micro-batch",
    "twice": "one tensor is the gradient of all outputs of its shape",
    "once": "one tensor is the output gradient of every micro-batch",
}

#: The weights that W may be passed; the alternative is all of them in their order.
WEIGHTS = {
    "reversed": "W receives the weights in reverse order",
    "twice": "I and W receive the first weight twice",
    "parts": "W runs twice, each time with a part of the weight context and its weights",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The setup of one run: ``stages[k]`` is the stage of the actions written ``kF0``.

    ``chain``: the stages are one pipeline. Each receives the outputs of the previous one, detached, and as output
    gradients the input gradients of the next one; only the last has a loss. ``loss``: backward starts at a loss.
    ``output_grads``: a pattern of :mod:`gradconform.fixtures.grad_tuples`. ``prior_grads``: parameters have gradients
    before the first action. ``same_args``: every micro-batch receives the same argument tensors. ``watch``: records in
    addition to gradients: ``state``, ``hooks`` (on parameters), ``module_hooks``, ``lifetime``, ``growth``.
    ``retain_graph``: every W must keep the graph; ``retained``: the micro-batches whose W must, if not all. ``modes``:
    the settings of the process while actions run, of :data:`gradconform.trial.modes.MODES`.

    ``one_module``: the stages are of one kind, and their sessions are on one module. ``tied``: names of the parameters
    that every stage shares with the first one. ``altering``: hooks on every parameter that ``scale`` or ``clip`` its
    gradient, or ``move`` it out of ``.grad``. ``raising``: micro-batches whose backward raises, on a stage that can;
    their B, I and W are written as misuses, and a W is not called if its I has raised. ``ragged``: every second
    micro-batch has one row less than the others. ``draw``: the number of the random draw; trials that differ only in it
    are independent of each other. ``repeats``: how many times the implementation runs the trial, each on a new stage.
    ``hand_grads``: which slots of the weight context that G sets hold a gradient, e.g. ``(True, False)``. ``unsent``:
    the numbers of the outputs that ``send`` leaves unchanged.

    ``received``: the tensors that the caller receives into, of :data:`RECEIVED`. ``tracked_grads``: output gradients
    require a gradient themselves. ``kept_lists``: the caller keeps the lists that it passes, and passes them again.
    ``weights``: the weights that W is passed, of :data:`WEIGHTS`. ``upstream``: arguments are in the memory of an
    earlier graph's outputs, and that graph continues with the input gradients. ``at_once``: each pair of equal actions
    of two stages, such as ``F0 1F0``, runs in two threads at the same time.
    """

    stages: tuple[StageCase, ...]
    program: str
    chain: bool = False
    loss: bool = False
    output_grads: str = "normal"
    prior_grads: bool = False
    same_args: bool = False
    watch: frozenset[str] = field(default_factory=frozenset)
    repeats: int = 1
    hand_grads: tuple[bool, ...] = ()
    retain_graph: bool = False
    retained: tuple[int, ...] = ()
    modes: frozenset[str] = field(default_factory=frozenset)
    one_module: bool = False
    tied: tuple[str, ...] = ()
    altering: Literal["", "scale", "clip", "move"] = ""
    raising: tuple[int, ...] = ()
    ragged: bool = False
    draw: int = 0
    unsent: tuple[int, ...] = ()
    received: str = ""
    tracked_grads: bool = False
    kept_lists: bool = False
    weights: str = ""
    upstream: bool = False
    at_once: bool = False

    def __hash__(self) -> int:
        """Return a hash of the fields that differ most: a trial is looked up for every check that reads it."""
        return hash((self.stages, self.program, self.loss, self.output_grads, self.watch, self.chain, self.draw))

    def __post_init__(self) -> None:
        """Raise :class:`~gradconform.trial.program.ProgramError` for what a chain or plain autograd cannot do."""
        other_settings = (
            self.same_args, self.prior_grads, self.hand_grads, self.modes, self.one_module, self.tied, self.altering,
            self.raising, self.ragged, self.received, self.tracked_grads, self.upstream, self.at_once,
        )  # fmt: skip
        of_chains = {"F", "B", "I", "W", "finish"}
        odd = any(action.misuse or action.kind not in of_chains for action in self.actions)
        if self.chain and (odd or any(other_settings)):
            msg = f"a chain is a plain pipeline: expected only F, B, I, W and finish, and no other settings; got {self}"
            raise ProgramError(msg)
        if unknown := sorted(self.modes - MODES.keys()):
            msg = f"unknown modes {unknown}; expected some of {sorted(MODES)}"
            raise ProgramError(msg)
        if AUTOCAST & self.modes and self.loss:
            msg = "a loss may be computed outside of autocast; expected output gradients with autocast"
            raise ProgramError(msg)
        if self.loss and "send" in {action.kind for action in self.actions}:
            msg = f"a loss cannot be sent; expected output gradients with send, got {self.program}"
            raise ProgramError(msg)
        self._refuse_replacements()
        self._refuse_sharing()
        self._refuse_words()

    def _refuse_words(self) -> None:
        """Raise for an unknown word, and for one that contradicts another."""
        for name, known in ("received", RECEIVED), ("weights", WEIGHTS):
            if getattr(self, name) and getattr(self, name) not in known:
                msg = f"{name}={getattr(self, name)!r}; expected one of {sorted(known)}, or nothing"
                raise ProgramError(msg)
        if self.same_args and (self.upstream or self.received == "inputs"):
            msg = f"same_args goes with neither upstream nor received='inputs'; got {self}"
            raise ProgramError(msg)
        if self.upstream and self.received == "inputs":
            msg = "outputs of an earlier graph are no receive buffers; expected either upstream or received='inputs'"
            raise ProgramError(msg)

    def _refuse_sharing(self) -> None:
        """Raise if a program changes parameters that several stages share, or that have altering hooks."""
        kinds = {action.kind for action in self.actions}
        if self.one_module and len(set(self.stages)) > 1:
            msg = f"one module cannot be {len(set(self.stages))} stages; expected one_module with stages of one kind"
            raise ProgramError(msg)
        if self.tied and (self.one_module or kinds & (CHANGES | OF_ONE)):
            msg = f"tied={self.tied} goes with neither one_module nor words that change parameters; got {self.program}"
            raise ProgramError(msg)
        if self.altering and (kinds & (REPLACEMENTS | ZEROES) or self.prior_grads or "parameter_input" in self.needs):
            msg = f"altering={self.altering!r} goes with no word that replaces or clears, nor prior_grads"
            raise ProgramError(msg)

    def _refuse_replacements(self) -> None:
        """Raise if parameters are replaced under a graph: some of its nodes have the old values, some the new.

        A backward that is written as a misuse may raise or use the old values.
        """
        refusing = {(action.stage, action.mb) for action in self.actions if action.misuse}
        for position, action in enumerate(self.actions):
            waiting = in_flight(self.actions[:position], action.stage) if action.kind in REPLACEMENTS else set()
            if waiting := {mb for mb in waiting if (action.stage, mb) not in refusing}:
                msg = f"{action} runs while micro-batches {sorted(waiting)} are in flight; expected none in flight"
                raise ProgramError(msg)

    @property
    def passed(self) -> tuple[str, ...]:
        """The unusual tensors and lists that the caller passes, one sentence each."""
        return (
            *([RECEIVED[self.received]] if self.received else []),
            *(["output gradients require grad"] if self.tracked_grads else []),
            *(["the caller uses its lists again"] if self.kept_lists else []),
            *([WEIGHTS[self.weights]] if self.weights else []),
            *(["arguments share the memory of an earlier graph's outputs"] if self.upstream else []),
        )

    @property
    def actions(self) -> tuple[Action, ...]:
        """The program, parsed."""
        return parse(self.program)

    @property
    def needs(self) -> frozenset[str]:
        """The capabilities that the trial requires."""
        found = set(needs(self.actions)).union(*(case.traits for case in self.stages))
        found |= {"loss" if self.loss_at(lane) else "mid_stage" for lane in range(len(self.stages))}
        if self._several_at_once():
            found.add("global_state=False")
        if gives_none(self.output_grads) and not all(map(self.loss_at, range(len(self.stages)))):
            found.add("none_output_grad")
        if self.prior_grads:
            found.add("grads_on_param")
        if "growth" in self.watch and "split" in found:  # work that is flushed at the end may grow until then
            found.add("weight_when=weight")
        if self.ragged:
            found.add("ragged")
        if self.retain_graph or self.retained:
            found.add("retain_graph")
        if self.kept_lists or self.weights:
            found.add("lists")
        if self.weights == "parts":
            found.add("param_groups")
        found |= {NEEDED_BY[mode] for mode in self.modes & NEEDED_BY.keys()}
        return frozenset(found | self._needed_of_parameters(split="split" in found))

    def _several_at_once(self) -> bool:
        """Return whether one session is open while another one is."""
        opened: set[int] = set()
        for action in self.actions:
            opened = opened - {action.stage} if action.kind == "close" else opened | {action.stage}
            if len(opened) > 1:
                return True
        return False

    def _needed_of_parameters(self, *, split: bool) -> set[str]:
        """Return the capabilities that shared parameters or gradient-altering hooks require."""
        found: set[str] = set()
        if self.one_module or self.tied:
            found |= {"shared_module", "grads_on_param"}
        if self.altering:
            found |= {"hooks=with_grad", "bias_hooks=as_weights"} if split else {"hooks!=nowhere"}
            found |= {"grads_in_param_grad"} if self.altering == "move" else set()
        if split and (self.one_module or self.tied or self.altering):
            found |= {"weight_when=weight", "input_pass_touches_params=False"}
        return found

    def loss_at(self, lane: int) -> bool:
        """Return whether the backward of ``stages[lane]`` starts at a loss."""
        return self.loss and (not self.chain or lane == len(self.stages) - 1)

    def standing(self, lane: int, position: int) -> Standing:
        """Return the state of the parameters of ``stages[lane]`` before the action at ``position``."""
        return standing(self.actions, self.sharing(lane), position)

    def sharing(self, lane: int, name: str = "") -> frozenset[int]:
        """Return the stages that have the parameter ``name`` of ``stages[lane]``, or all its parameters."""
        everywhere = self.one_module or name in self.tied
        return frozenset(range(len(self.stages))) if everywhere else frozenset({lane})

    def microbatches(self, stage: int = 0) -> int:
        """Return how many micro-batches run forward on ``stages[stage]``."""
        return microbatches(self.actions, stage)
