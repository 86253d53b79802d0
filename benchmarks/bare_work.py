"""The bare work of a run: the same stages, programs and modes, implementation and oracle, nothing compared or kept."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.adapter import Adapter, Session, StageSpec, Tree
from gradconform.devices.device import device_of
from gradconform.reference.autograd import AutogradAdapter
from gradconform.run.run import Run
from gradconform.trees import as_tuple, leaves
from gradconform.trial.materials import Materials, mean_squares
from gradconform.trial.modes import call_in
from gradconform.trial.program import Action
from gradconform.trial.trial import Trial


class BareLane:
    """One stage of a trial and its session."""

    def __init__(self, adapter: Adapter, materials: Materials, lane: int) -> None:
        """Open the adapter on a new stage, with the spec that the driver gives."""
        trial = materials.trial
        self.stage: nn.Module = materials.stage(lane)
        self.outputs: dict[int, Tree] = {}
        self.args: dict[int, tuple[Any, ...]] = {}
        example = materials.args(lane, 0, self.stage)
        self.session: Session = adapter.open(
            self.stage,
            StageSpec(
                is_last=trial.loss,
                releases_outputs="send" in trial.program,
                n_microbatches=trial.microbatches(lane),
                loss_fn=mean_squares if trial.loss else None,
                example_args=example,
                example_outputs=materials.example_outputs(lane),
                args_require_grad=tuple(isinstance(arg, Tensor) and arg.requires_grad for arg in example),
                repeats_weight=any(action.kind == "W" and action.misuse for action in trial.actions),
            ),
        )


def run_program(adapter: Adapter, materials: Materials) -> None:
    """Run the program of a trial once."""
    lanes: dict[int, BareLane] = {}
    for action in materials.trial.actions:
        if action.stage not in lanes:
            lanes[action.stage] = BareLane(adapter, materials, action.stage)
        # A misuse may raise; what else raises ends the program, as it does under the driver.
        try:
            call_in(
                materials.trial.modes,
                action.kind,
                materials.device,
                partial(_act, lanes[action.stage], action, materials),
            )
        except Exception:  # noqa: BLE001 (whatever the implementation raises is not this script's business)
            if not action.misuse:
                break
    for lane in lanes.values():
        with contextlib.suppress(Exception):
            lane.session.finish()
        lane.session.close()


def _act(lane: BareLane, action: Action, materials: Materials) -> None:
    mb, trial = action.mb, materials.trial
    if action.kind == "F":
        shared = trial.same_args and lane.args
        args = next(iter(lane.args.values())) if shared else materials.args(action.stage, mb, lane.stage)
        lane.args[mb] = args
        device_of(materials.device).seed(materials.rng_seed(mb))
        target = materials.target(action.stage, mb) if trial.loss else None
        lane.outputs[mb] = lane.session.forward(mb, args, target)
    elif action.kind in {"B", "I"}:
        grads = None if trial.loss else materials.output_grads(action.stage, mb)
        backward = lane.session.backward if action.kind == "B" else lane.session.backward_input
        backward(mb, grads)
    elif action.kind == "W":
        lane.session.backward_weight(mb)
    else:
        _around(lane, action, materials)


def _around(lane: BareLane, action: Action, materials: Materials) -> None:
    if action.kind == "G":
        node = next(leaf.grad_fn for _, leaf in leaves(as_tuple(lane.outputs[action.mb])) if isinstance(leaf, Tensor))
        put: Any = lane.session
        put.put_weight_context(action.mb, node, materials.hand_grads(action.stage, action.mb))
    elif action.kind == "finish":
        lane.session.finish()
    elif action.kind == "send":
        sent: Any = lane.session
        sent.release_outputs(action.mb, materials.trial.unsent)
        del lane.outputs[action.mb]
    elif action.kind == "drop":
        lane.args.pop(action.mb, None)
        lane.outputs.pop(action.mb, None)
    else:
        lane.stage.zero_grad(set_to_none=action.kind == "zero_none")


def trials_of(run: Run) -> list[Trial]:
    """Return every trial of the plan once, in order, where all that it needs is claimed."""
    claims = run.target.capabilities
    return list(dict.fromkeys(t for item in run.plan.items if not item.check.unmet(claims) for t in item.check.trials))


def bare_run(run: Run, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> None:
    """Run every trial of the plan: the oracle once, the implementation as often as the trial repeats it."""
    oracle = AutogradAdapter()
    for trial in trials_of(run):
        materials = Materials(trial, dtype=dtype, device=torch.device(device), seed=run.options.seed)
        run_program(oracle, materials)  # type: ignore[arg-type]  # its claims are a mapping, as users' may be
        for _ in range(trial.repeats):
            run_program(run.target.adapter, materials)


def make_stages(run: Run, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> None:
    """Make the stages that :func:`bare_run` makes, and do nothing with them."""
    for trial in trials_of(run):
        materials = Materials(trial, dtype=dtype, device=torch.device(device), seed=run.options.seed)
        for lane in range(len(trial.stages)):
            for _ in range(1 + trial.repeats):
                materials.stage(lane)
