"""The driver: runs a trial's program on any adapter and writes down what it saw.

It knows no special case: plain autograd is driven by the same lines as the implementation under test.
"""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradconform.adapter import Adapter, Session, StageSpec, Tree, UnsupportedError
from gradconform.devices.device import device_of
from gradconform.fixtures.trees import as_tuple, leaves, tensors
from gradconform.materials import Materials, mean_squares
from gradconform.observation import Observation, Raised, State, Step
from gradconform.program import Action
from gradconform.watch import (
    HookWatch,
    LifetimeWatch,
    collections,
    copy_of,
    live_tensors,
    on_cpu,
    place_of,
    shared_storage,
    snapshot,
    write_over,
)

#: Records nothing, at next to no cost.
NO_RECORD: AbstractContextManager[None] = contextlib.nullcontext()


def drive(
    adapter: Adapter,
    materials: Materials,
    *,
    loss_scale: float = 1.0,
    record: AbstractContextManager[object] = NO_RECORD,
) -> Observation:
    """Run the program of ``materials.trial`` on ``adapter`` and return what it showed.

    An action that raises ends its stage's part of the program, unless it is written as a misuse (``W0!``).
    ``loss_scale`` multiplies the loss. ``record`` is entered around every call of the session, so that it sees what the
    implementation does and nothing of the driver's. Raises :class:`UnsupportedError` where the adapter does.
    """
    if "growth" in materials.trial.watch:
        materials.draw_all()
    collector = not materials.trial.watch & {"lifetime", "growth"}
    with _quiet(collector=collector), device_of(materials.device).generators_kept():
        run = _Run(adapter, materials, loss_scale, record)
        try:
            return run.observe()
        finally:
            run.observation.close_raised = run.close()
            materials.forget()


@contextlib.contextmanager
def _quiet(*, collector: bool) -> Iterator[None]:
    """Leave the process as it was: warnings (a strict filter would raise them), grad mode, collector.

    The collector is stopped unless ``collector``.
    """
    enabled = gc.isenabled()
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")
        try:
            if not collector:
                gc.disable()
            yield
        finally:
            if enabled:
                gc.enable()


#: The micro-batches after which a growth trial counts live tensors: the twentieth, when caches are full, and the last.
COUNTED = (19, 49)


class _Lane:
    """One stage of the trial, its session, and what the caller of a stage holds: arguments, outputs, gradients.

    ``param_grads`` and ``state`` are the copies made after the last action.
    """

    def __init__(self, index: int, adapter: Adapter, materials: Materials, loss_scale: float) -> None:
        trial = materials.trial
        self.index = index
        self.stage = materials.stage(index)
        modules = "module_hooks" in trial.watch
        self.hooks = HookWatch(self.stage, modules=modules) if modules or "hooks" in trial.watch else None
        self.lifetime = LifetimeWatch() if "lifetime" in trial.watch else None
        self.args: dict[int, tuple[Any, ...]] = {}
        self.outputs: dict[int, Tree] = {}
        self.output_grads: dict[int, Tree] = {}
        self.returned: dict[int, tuple[Tensor | None, ...]] = {}
        self.param_grads: dict[str, Tensor | None] = {}
        self.state: State | None = None
        self.losses: list[Tensor] = []
        self.stopped = False
        example = materials.example_args(index, self.stage)
        self._adapter = adapter
        self._spec = StageSpec(
            is_first=trial.chain and index == 0,
            is_last=trial.loss_at(index),
            n_microbatches=trial.microbatches(index),
            loss_fn=partial(_scaled_loss, loss_scale, self.losses) if trial.loss_at(index) else None,
            example_args=example,
            example_outputs=materials.example_outputs(index),
            args_require_grad=tuple(isinstance(arg, Tensor) and arg.requires_grad for arg in example),
            repeats_weight=any(action.kind == "W" and action.misuse for action in trial.actions),
            retain_graph=trial.retain_graph,
        )
        self.session: Session = self._open()

    def _open(self) -> Session:
        return self._adapter.open(self.stage, self._spec)

    def reopen(self) -> None:
        """Close the session and open another one on the same module."""
        self.session.close()
        self.session = self._open()

    def let_go(self, mb: int) -> None:
        """Forget what the caller of a stage holds of one micro-batch."""
        for held in (self.args, self.outputs, self.output_grads, self.returned):
            held.pop(mb, None)


def _scaled_loss(scale: float, seen: list[Tensor], outputs: Tree, target: Tree) -> Tensor:
    """Return the loss; a copy of it goes to ``seen``, a list of its own: the lane in its place would be a cycle."""
    loss = mean_squares(outputs, target)
    seen[:] = [loss.detach().clone()]
    return loss if scale == 1.0 else loss * scale


class _Run:
    """One run of a program."""

    def __init__(
        self, adapter: Adapter, materials: Materials, loss_scale: float, record: AbstractContextManager[object]
    ) -> None:
        self.adapter, self.materials, self.loss_scale, self.record = adapter, materials, loss_scale, record
        self.trial, self.device = materials.trial, device_of(materials.device)
        self.lanes: dict[int, _Lane] = {}
        self.observation = Observation()
        self.ended = False
        self.kept: list[tuple[str, Tensor, Tensor]] = []
        self.collections = collections()
        self.overwrites = any(action.kind == "overwrite" for action in self.trial.actions)

    def observe(self) -> Observation:
        for position, action in enumerate((*self.trial.actions, *self._endings())):
            step = Step(action, position)
            lane = None if self.ended else self._lane(action, step)
            if lane is not None and not lane.stopped:
                self._act(lane, action, step)
                self._record(lane, action, step)
                self.observation.steps.append(step)
                lane.stopped = step.raised is not None and not action.misuse
                self.ended = lane.stopped and self.trial.chain  # no stage of a chain can go on without another
        self.observation.changed_later = [
            name for name, tensor, copy in self.kept if not torch.equal(_dense(on_cpu(tensor)), _dense(copy))
        ]
        return self.observation

    def close(self) -> Raised | None:
        """Close every session, whatever the others do; return what the first one raised that did."""
        problem = None
        for lane in self.lanes.values():
            try:
                lane.session.close()
            except Exception as error:  # noqa: BLE001, PERF203 (as in _act)
                problem = problem or Raised.of(error)
        return problem

    def _endings(self) -> tuple[Action, ...]:
        ended = {action.stage for action in self.trial.actions if action.kind == "finish"}
        return tuple(Action("finish", stage=k) for k in range(len(self.trial.stages)) if k not in ended)

    def _lane(self, action: Action, step: Step) -> _Lane | None:
        if action.stage not in self.lanes:
            try:
                self.lanes[action.stage] = _Lane(action.stage, self.adapter, self.materials, self.loss_scale)
            except UnsupportedError:
                raise
            except Exception as error:  # noqa: BLE001 (whatever open raises is what is seen of it)
                if any(before.action.stage == action.stage for before in self.observation.steps):
                    return None
                step.raised = Raised.of(error)
                self.observation.steps.append(step)
                self.ended = self.trial.chain
                return None
        return self.lanes[action.stage]

    def _act(self, lane: _Lane, action: Action, step: Step) -> None:
        try:
            _ACTS[action.kind](self, lane, action.mb, step)
            if not self.device.is_cpu:  # what the device reports late belongs to the action that it was asked in
                self.device.synchronize()
        except UnsupportedError:
            raise
        except Exception as error:  # noqa: BLE001 (what the implementation raises is an observation)
            step.raised = Raised.of(error)
        if action.kind in {"B", "I", "W"}:
            self.device.settle()  # what it has let go of counts neither as alive nor as memory

    def _forward(self, lane: _Lane, mb: int, step: Step) -> None:
        lane.args[mb] = args = self._args(lane, mb)
        target = self.materials.target(lane.index, mb) if self.trial.loss_at(lane.index) else None
        self.device.seed(self.materials.rng_seed(mb))
        with lane.lifetime.watch(mb, args) if lane.lifetime else NO_RECORD, self.record:
            outputs = lane.session.forward(mb, args, target)
        self.device.synchronize(*tensors(as_tuple(outputs)))  # a device that runs late draws when it runs
        if lane.lifetime:
            lane.lifetime.outputs(mb, outputs)
        lane.outputs[mb] = outputs
        found = [leaf for _, leaf in leaves(as_tuple(outputs))]
        step.outputs = tuple(map(copy_of, found))
        step.loss = on_cpu(lane.losses.pop()) if lane.losses else None
        self._locate(step, "output", enumerate(found))

    def _args(self, lane: _Lane, mb: int) -> tuple[Any, ...]:
        """Return what F is fed: materials, or in a chain what the stage before has put out, in leaves of its own."""
        if self.trial.chain and lane.index:
            return tuple(map(_handed_on, as_tuple(self.lanes[lane.index - 1].outputs[mb])))
        if self.trial.same_args and lane.args:
            return next(iter(lane.args.values()))
        return self.materials.args(lane.index, mb, lane.stage)

    def _output_grads(self, lane: _Lane, mb: int, *, misuse: bool) -> Tree:
        """Return what B and I are given: materials, or in a chain what the stage behind has returned for its inputs."""
        if self.trial.loss_at(lane.index):
            return None
        if self.trial.chain and lane.index < len(self.trial.stages) - 1:
            behind = self.lanes[lane.index + 1].returned.pop(mb)
            return tuple(grad.detach() if isinstance(grad, Tensor) else grad for grad in behind)
        return self.materials.output_grads(lane.index, mb, misuse=misuse)

    def _backward(self, lane: _Lane, mb: int, step: Step, *, method: str) -> None:
        lane.output_grads[mb] = grads = self._output_grads(lane, mb, misuse=step.action.misuse)
        with self.record:
            returned = getattr(lane.session, method)(mb, grads)
        self._locate(step, "input", enumerate(returned))
        step.input_grads = tuple(copy_of(grad) for grad in returned)
        step.tracked = tuple(n for n, grad in enumerate(returned) if isinstance(grad, Tensor) and grad.requires_grad)
        if "state" in self.trial.watch or self.trial.chain or self.overwrites:
            lane.returned[mb] = tuple(returned)
        if "state" in self.trial.watch:
            self.kept += [
                (f"input gradient {slot} returned by {step.action}", grad, copy_of(grad))
                for slot, grad in enumerate(returned)
                if isinstance(grad, Tensor)
            ]

    def _weight(self, lane: _Lane, mb: int, step: Step) -> None:
        with self.record:
            result = lane.session.backward_weight(mb)
        step.weight_result = None if result is None else tuple(copy_of(grad) for grad in result)

    def _put_by_hand(self, lane: _Lane, mb: int, step: Step) -> None:
        del step
        node = next(leaf.grad_fn for _, leaf in leaves(as_tuple(lane.outputs[mb])) if isinstance(leaf, Tensor))
        put = getattr(lane.session, "put_weight_context", None)
        if put is None:
            msg = "the session has no put_weight_context"
            raise UnsupportedError(msg)
        put(mb, node, self.materials.hand_grads(lane.index, mb))

    def _zero(self, lane: _Lane, mb: int, step: Step, *, set_to_none: bool) -> None:
        del mb, step
        lane.stage.zero_grad(set_to_none=set_to_none)

    def _drop(self, lane: _Lane, mb: int, step: Step) -> None:
        del step
        lane.let_go(mb)

    def _overwrite(self, lane: _Lane, mb: int, step: Step) -> None:
        del step
        written = [grad for grad in lane.returned.pop(mb) if isinstance(grad, Tensor)]
        self.kept = [entry for entry in self.kept if not any(entry[1] is grad for grad in written)]
        for grad in written:
            write_over(grad)

    def _hook(self, lane: _Lane, mb: int, step: Step) -> None:
        del mb, step
        lane.hooks = HookWatch(lane.stage, modules=False)

    def _unhook(self, lane: _Lane, mb: int, step: Step) -> None:
        del mb, step
        if lane.hooks is not None:
            lane.hooks.remove()
            lane.hooks = None

    def _set_frozen(self, lane: _Lane, index: int, step: Step, *, frozen: bool) -> None:
        del step
        list(lane.stage.parameters())[index].requires_grad_(not frozen)

    def _reopen(self, lane: _Lane, mb: int, step: Step) -> None:
        del mb, step
        with self.record:
            lane.reopen()

    def _finish(self, lane: _Lane, mb: int, step: Step) -> None:
        del mb
        with self.record:
            lane.session.finish()
        if not self.device.is_cpu:
            self._locate(step, "parameter", lane.stage.named_parameters())
            self._locate(step, "buffer", lane.stage.named_buffers())

    def _locate(self, step: Step, kind: str, named: Iterable[tuple[object, Any]]) -> None:
        """Write down which tensors do not sit on the trial's device."""
        on_cpu_alone = self.device.is_cpu
        for name, value in named:
            if not isinstance(value, Tensor) or (on_cpu_alone and value.is_cpu):  # the common case, and quick
                continue
            if not _sits_on(value.device, self.materials.device):
                step.misplaced[f"{kind} {name}"] = str(value.device)

    def _record(self, lane: _Lane, action: Action, step: Step) -> None:
        watch = self.trial.watch
        if lane.lifetime:
            step.alive = lane.lifetime.count()
        if "growth" in watch:
            step.input_grads = step.outputs = step.weight_result = step.loss = None
            if action.kind == "drop" and action.mb in COUNTED:
                step.live_tensors = live_tensors(self.collections)
            return
        try:
            stored = dict(lane.session.param_grads())
        except Exception as error:  # noqa: BLE001 (as in _act)
            step.raised = step.raised or Raised.of(error)
            return
        self._locate(step, "gradient of", stored.items())
        before = lane.param_grads
        step.param_grads = lane.param_grads = {name: copy_of(grad, before.get(name)) for name, grad in stored.items()}
        if action.mb in lane.args:
            args = lane.args[action.mb]
            step.arg_grads = tuple(copy_of(a.grad) if isinstance(a, Tensor) and a.is_leaf else None for a in args)
        if lane.hooks:
            step.hook_calls = lane.hooks.take()
        if "state" in watch:
            step.state = lane.state = snapshot(
                lane.stage, lane.args, lane.output_grads, self.materials.device, lane.state
            )
            params = dict(lane.stage.named_parameters())
            step.shared = shared_storage(lane.returned, stored, lane.output_grads, lane.args, params)
            step.grad_places = {name: place_of(grad) for name, grad in stored.items() if grad is not None}


_ACTS: dict[str, Callable[[_Run, _Lane, int, Step], None]] = {
    "F": _Run._forward,  # noqa: SLF001 (the table belongs to the class)
    "B": partial(_Run._backward, method="backward"),  # noqa: SLF001 (as above)
    "I": partial(_Run._backward, method="backward_input"),  # noqa: SLF001 (as above)
    "W": _Run._weight,  # noqa: SLF001 (as above)
    "G": _Run._put_by_hand,  # noqa: SLF001 (as above)
    "zero_none": partial(_Run._zero, set_to_none=True),  # noqa: SLF001 (as above)
    "zero_fill": partial(_Run._zero, set_to_none=False),  # noqa: SLF001 (as above)
    "drop": _Run._drop,  # noqa: SLF001 (as above)
    "overwrite": _Run._overwrite,  # noqa: SLF001 (as above)
    "hook": _Run._hook,  # noqa: SLF001 (as above)
    "unhook": _Run._unhook,  # noqa: SLF001 (as above)
    "freeze": partial(_Run._set_frozen, frozen=True),  # noqa: SLF001 (as above)
    "unfreeze": partial(_Run._set_frozen, frozen=False),  # noqa: SLF001 (as above)
    "reopen": _Run._reopen,  # noqa: SLF001 (as above)
    "finish": _Run._finish,  # noqa: SLF001 (as above)
}


def _sits_on(place: torch.device, device: torch.device) -> bool:
    """Tell whether ``place`` is ``device``; one named without an index is any of its kind."""
    return place.type == device.type and device.index in {None, place.index}


def _handed_on(output: Any) -> Any:
    """Return an output as the next stage's argument: a leaf on the same memory, as between two stages of one rank."""
    return output.detach().requires_grad_(output.requires_grad) if isinstance(output, Tensor) else output


def _dense(tensor: Tensor) -> Tensor:
    """Return a dense copy whose NaNs compare equal to themselves."""
    dense = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
    return torch.nan_to_num(dense, nan=0.125) if dense.is_floating_point() else dense
