"""The driver: runs a trial's program on any adapter and records its observations.

It has no special case: plain autograd is driven by the same lines as the implementation under test.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from operator import is_not
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.adapter import Adapter, Tree, UnsupportedError, claims_of
from gradconform.devices.device import device_of
from gradconform.devices.tensor_facts import place_of
from gradconform.process.forks import OneProcess
from gradconform.process.interrupts import interrupts_seen, pass_on_an_interrupt
from gradconform.results import Sort
from gradconform.trees import equal, flattened, in_key_order, tensors
from gradconform.trial.materials import Materials, mean_squares
from gradconform.trial.modes import call_in, threads_like_this_one
from gradconform.trial.program import Action

from .adapter_mistake import mistake_in
from .caller_acts import CALLER_ACTS, evaluate
from .kept_process import KeptProcess
from .lane import Lane
from .main_grad import move_to_main_grad
from .observation import UNKNOWN, Observation, Raised, Sight, Step
from .process_state import Handed, changes_noted, settings, state_outside_torch
from .returned_forms import GRADIENTS, named_grads, refuse_other_than_grads
from .stage_changes import tie, write_over
from .stage_inputs import args_of, grads_of
from .streams import CallerReads, SeesStreams
from .watches import (
    Surroundings,
    collections,
    copies_by_name,
    copies_of,
    copy_of,
    dense,
    held_after,
    live_tensors,
    on_cpu,
    shared_storage,
    sits_on,
)

NOTHING_SEEN = Observation()
#: A log that records nothing, at almost no cost.
NO_LOG: AbstractContextManager[None] = contextlib.nullcontext()


def drive(
    adapter: Adapter,
    materials: Materials,
    *,
    loss_scale: float = 1.0,
    log: AbstractContextManager[object] = NO_LOG,
    known: Observation = NOTHING_SEEN,
) -> Observation:
    """Return the observation of the program of ``materials.trial``, run on ``adapter``.

    An action that raises ends its stage's part of the program, unless it is written as a misuse (``W0!``).
    ``loss_scale`` multiplies the loss. ``log`` is entered around every call of the session, so that it sees only the
    implementation's operations, not the driver's. Values equal to those in ``known``, an observation of the same trial,
    are not copied again. Raises :class:`UnsupportedError` if the adapter does, and
    :class:`~gradconform.drive.adapter_mistake.AdapterMistakeError` if an adapter of the kit is wrong.
    """
    if "growth" in materials.trial.watch:
        materials.draw_all()
    collector = not materials.trial.watch & {"lifetime", "growth", "stage"}
    with interrupts_seen(), _quiet(collector=collector), KeptProcess(materials.device):
        run = _Run(adapter, materials, loss_scale, log)
        try:
            changed_later = run.observe({step.position: step for step in known.steps})
        finally:
            close_raised = run.close()
            materials.forget()
        held = held_after(run.let_stages_go) if "stage" in materials.trial.watch else {}
        return Observation(tuple(run.steps), changed_later, close_raised, held_stage=held)


@contextlib.contextmanager
def _quiet(*, collector: bool) -> Iterator[None]:
    """Restore the process afterwards: warnings (a strict filter would raise them), grad mode, collector.

    The collector is stopped unless ``collector`` is set.
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


#: The actions that write gradients.
_WRITES = frozenset({"B", "I", "W", "finish"})

#: The micro-batches after which a growth trial counts live tensors: the twentieth, when caches are full, and the last.
COUNTED = (19, 49)


def _keep_result(sight: Sight) -> None:
    """Record what W returned: a gradient that was stored has the copy that was made of it."""
    copies = sight.seen["param_grads"].values() if sight.stored else ()
    same = dict(zip(map(id, sight.stored.values()), copies, strict=True))
    found = [same[id(value)] if id(value) in same else copy_of(value) for value in sight.result or ()]
    sight.seen["weight_result"] = tuple(found)


def _loss_of(outputs: Tree, target: Tree) -> Tensor | None:
    """Return the loss of F's outputs, whenever the implementation computes its own; None without a loss."""
    try:
        with torch.no_grad():
            return mean_squares(outputs, target)
    except (RuntimeError, ValueError):  # outputs that do not fit the target are reported as outputs
        return None


class _Run:
    """One run of a program; ``steps`` has the observations so far."""

    def __init__(
        self, adapter: Adapter, materials: Materials, loss_scale: float, log: AbstractContextManager[object]
    ) -> None:
        self.adapter, self.materials, self.loss_scale, self.log = adapter, materials, loss_scale, log
        self.trial, self.device = materials.trial, device_of(materials.device)
        self.actions = self.trial.actions
        self.is_cpu = self.device.is_cpu
        self.lanes: dict[int, Lane] = {}
        self.modules: dict[int, nn.Module] = {}
        self.steps: list[Step] = []
        self.ended = False
        self.alone = OneProcess()
        self.ahead: dict[int, Sight] = {}
        self.kept: list[tuple[str, Tensor, Tensor]] = []
        self.collections = collections() if "growth" in self.trial.watch else 0
        self.overwrites = "overwrite" in self.trial.program
        self.streams = log if log is not NO_LOG and isinstance(log, SeesStreams) else None
        self.reads = CallerReads()
        self.before = state_outside_torch() if "state" in self.trial.watch else {}
        self.changes: dict[str, Any] = {}

    def observe(self, known: Mapping[int, Step]) -> tuple[str, ...]:
        """Run the program, whose ``known`` steps were seen before; return the names of gradients that changed later."""
        for position, action in enumerate((*self.actions, *self._endings())):
            sight = self.ahead.get(position) or Sight(action, position, known.get(position, UNKNOWN))
            lane = None if self.ended else self.lanes.get(action.stage) or self._lane(sight)
            if lane is not None and not lane.stopped and not (action.kind == "W" and action.mb in lane.failed):
                if position not in self.ahead:
                    self._act_with_next(lane, sight, known) if self.trial.at_once else self._act(lane, sight)
                self._look(lane, sight)
                if sight.result is not None:
                    _keep_result(sight)
                self.steps.append(sight.step())
                lane.stopped = sight.raised is not None and not action.misuse
                if sight.raised is not None and action.kind == "I" and action.mb in self.trial.raising:
                    lane.failed.add(action.mb)
                self.ended = lane.stopped and self.trial.chain  # no stage of a chain can continue without another
        return tuple([name for name, tensor, copy in self.kept if not equal(dense(on_cpu(tensor)), dense(copy))])

    def close(self) -> Raised | None:
        """Return the first error of closing every session, or None; an error does not stop the others."""
        errors = []
        for lane in self.lanes.values():
            try:
                with self.alone:
                    lane.close()
            except BaseException as error:  # noqa: BLE001, PERF203 (as in _act)
                errors.append(error)
        return self._raised(errors[0]) if errors else None

    def let_stages_go(self) -> dict[str, weakref.ref[Any]]:
        """Free the stages and all that belongs to them; return weak references to them and their parameters."""
        found: dict[str, weakref.ref[Any]] = {}
        for module in self.modules.values():
            found["the module"] = weakref.ref(module)
            found |= {f"parameter {name}": weakref.ref(one) for name, one in module.named_parameters()}
        self.lanes.clear()
        self.modules.clear()
        return found

    def _raised(self, error: BaseException, *, call: str = "") -> Raised:
        """Return an exception of an action, or of ``call``, as an observation.

        A mistake of the kit's own adapter is raised instead, and so is a person's ctrl-C.
        """
        pass_on_an_interrupt(error)
        mistake = mistake_in(self.adapter, error)
        if mistake is not None:
            raise mistake from error
        return Raised.of(error, call=call)

    def _endings(self) -> tuple[Action, ...]:
        ended = {action.stage for action in self.actions if action.kind in {"finish", "close"}}
        return tuple([Action("finish", stage=k) for k in range(len(self.trial.stages)) if k not in ended])

    def _lane(self, sight: Sight) -> Lane | None:
        """Return the opened stage of an action; None if opening raises, which is recorded the first time."""
        stage = sight.action.stage
        try:
            module = self._module(stage)
            with self.alone:
                self.lanes[stage] = Lane(stage, module, self.adapter, self.materials, self.loss_scale)
        except UnsupportedError:
            raise
        except BaseException as error:  # noqa: BLE001 (every error of open is an observation)
            if any(before.action.stage == stage for before in self.steps):
                return None
            sight.raised = self._raised(error)
            self.steps.append(sight.step())
            self.ended = self.trial.chain
            return None
        return self.lanes[stage]

    def _module(self, index: int) -> nn.Module:
        """Return the module of a stage, which may be the first one's or share its parameters."""
        index = 0 if self.trial.one_module else index
        if index not in self.modules:
            self.modules[index] = self.materials.stage(index)
            if self.trial.prior_grads and not claims_of(self.adapter).grads_in_param_grad:
                move_to_main_grad(self.modules[index])
            if index and self.trial.tied:
                tie(self.modules[index], self._module(0), self.trial.tied)
        return self.modules[index]

    def _act_with_next(self, lane: Lane, sight: Sight, known: Mapping[int, Step]) -> None:
        """Run an action at the same time as the next one, if that is the same action of another stage."""
        action, position = sight.action, sight.position + 1
        following = self.actions[position] if position < len(self.actions) else action
        if following.stage == action.stage or following != replace(action, stage=following.stage):
            self._act(lane, sight)
            return
        second = Sight(following, position, known.get(position, UNKNOWN))
        other = self.lanes.get(following.stage) or self._lane(second)
        if other is None or other.stopped:
            self._act(lane, sight)
            return
        self.ahead[position] = second
        barrier = threading.Barrier(2)
        for one in lane, other:
            vars(one.stage)["meeting"] = barrier
        with threads_like_this_one(2) as threads:
            for done in [threads.submit(self._act, *one) for one in ((lane, sight), (other, second))]:
                done.result()
        for one in lane, other:
            del vars(one.stage)["meeting"]
        if not self.is_cpu:
            barrier.abort()  # both backwards run in the device's one thread, where neither could meet the other

    def _act(self, lane: Lane, sight: Sight) -> None:
        action = sight.action
        if self.streams is not None:
            self.reads = CallerReads()
        if self.trial.raising:  # in every action: a backward may run a forward again
            vars(lane.stage)["raising"] = action.mb in self.trial.raising
        try:
            if action.kind in CALLER_ACTS:
                CALLER_ACTS[action.kind](lane, action.mb)
            else:
                _SESSION_ACTS[action.kind](self, lane, action.mb, sight)
            if self.trial.received:
                lane.received.after(action.kind, action.mb)
            if lane.upstream and action.kind == "finish" and (wrong := lane.upstream.go_on()):
                sight.seen["upstream"] = wrong
            if not self.is_cpu:
                self._wait(lane, sight)
        except UnsupportedError:
            raise
        except BaseException as error:  # noqa: BLE001 (every error of the implementation is an observation)
            sight.raised = self._raised(error)
        if not self.is_cpu and action.kind in {"B", "I", "W"}:
            self.device.wait_for_autograd()  # tensors that it has freed count neither as alive nor as memory

    def _wait(self, lane: Lane, sight: Sight) -> None:
        """Wait for the device: its late errors belong to the action that caused them. Record its late gradients."""
        streams, kind = self.streams, sight.action.kind
        late = streams is not None and streams.other_streams and kind in _WRITES and not lane.closed
        if late:
            self.reads.read("parameter gradient", lane.session.param_grads().items())
        self.device.synchronize()
        if late:
            sight.seen["late"] = self.reads.late()

    def _call(self, kind: str, call: Callable[..., Any], *args: Any) -> Any:
        """Return the result of a session's call, logged, in the modes of the trial."""
        if not self.trial.modes:  # common, and quick
            if self.log is NO_LOG:
                with self.alone:
                    return call(*args)
            with self.log, self.alone:
                return call(*args)
        return call_in(self.trial.modes, kind, self.materials.device, partial(self._logged, call, *args))

    def _logged(self, call: Callable[..., Any], *args: Any) -> Any:
        noted = changes_noted(self.materials.device, self.changes) if "state" in self.trial.watch else NO_LOG
        with noted, self.log, self.alone:  # in the thread that runs it
            return call(*args)

    def _forward(self, lane: Lane, mb: int, sight: Sight) -> None:
        lane.args[mb] = args = args_of(self.lanes, lane, mb, self.materials)
        target = self.materials.target(lane.index, mb) if lane.has_loss else None
        self.device.seed(self.materials.rng_seed(mb))
        if lane.lifetime:
            with lane.lifetime.watch(mb, args):
                outputs = self._call("F", lane.session.forward, mb, args, target)
        else:
            outputs = self._call("F", lane.session.forward, mb, args, target)
        found = flattened(in_key_order(outputs, lane.example_outputs))
        if not self.is_cpu:  # a device that runs late draws when it runs
            self.device.synchronize(*tensors(found))
        if lane.lifetime:
            lane.lifetime.outputs(mb, outputs)
        lane.outputs[mb] = outputs
        detached = [n for n, output in enumerate(found) if isinstance(output, Tensor) and not output.requires_grad]
        if detached:
            sight.seen["detached"] = tuple(detached)
        known = sight.known
        sight.seen["outputs"] = copies = copies_of(found, known.outputs)
        if target is not None:  # equal outputs have the same loss
            sight.seen["loss"] = known.loss if copies is known.outputs else on_cpu(_loss_of(outputs, target))
        if "outputs" in self.trial.watch:
            self._keep((f"output {n} of {sight.action}" for n in range(len(found))), found, copies)
        if not (self.is_cpu and copies is known.outputs):  # known copies that are unchanged are on the CPU
            self._locate(sight, "output", "output", enumerate(found))

    def _lose(self, lane: Lane, mb: int, sight: Sight) -> None:
        del sight
        args = self.materials.lost_args(lane.index, mb, lane.stage)
        target = self.materials.target(lane.index, mb) if self.trial.loss_at(lane.index) else None
        self.device.seed(self.materials.rng_seed(mb))
        self._call("F", lane.session.forward, mb, args, target)

    def _evaluate(self, lane: Lane, mb: int, sight: Sight) -> None:
        del sight
        evaluate(lane.stage, self.materials.args(lane.index, mb, lane.stage))

    def _backward(self, lane: Lane, mb: int, sight: Sight, *, method: str) -> None:
        lane.output_grads[mb] = grads = grads_of(self.lanes, lane, sight.action, self.materials)
        if "state" in self.trial.watch:
            lane.handed[mb] = Handed(grads)
        returned = self._call(sight.action.kind, getattr(lane.session, method), mb, grads)
        if type(returned) is not tuple:  # not common, and a call costs time
            refuse_other_than_grads(f"{method}()", returned)
        if lane.upstream:
            lane.upstream.returned(mb, returned)
        if self.streams is not None and self.streams.other_streams:
            self.reads.read("input gradient", ((f"input {slot}", grad) for slot, grad in enumerate(returned)))
        known = sight.known.input_grads
        sight.seen["input_grads"] = copies = copies_of(returned, known)
        if not (self.is_cpu and copies is known):
            self._locate(sight, "input gradient", "input", enumerate(returned))
        tracked = [n for n, grad in enumerate(returned) if isinstance(grad, Tensor) and grad.requires_grad]
        if tracked:
            sight.seen["tracked"] = tuple(tracked)
        if "state" in self.trial.watch or self.trial.chain or self.overwrites:
            lane.returned[mb] = tuple(returned)
        if "state" in self.trial.watch:
            self._keep((f"input gradient {n} returned by {sight.action}" for n in range(len(copies))), returned, copies)

    def _keep(self, names: Iterable[str], returned: Iterable[Any], copies: Iterable[Any]) -> None:
        """Store tensors that the implementation returned, to look at them again in the end."""
        every = zip(names, returned, copies, strict=True)
        self.kept += [(name, tensor, copy) for name, tensor, copy in every if isinstance(tensor, Tensor)]

    def _weight(self, lane: Lane, mb: int, sight: Sight) -> None:
        sight.result = self._call("W", lane.session.backward_weight, mb)
        if sight.result is not None and type(sight.result) is not tuple:
            refuse_other_than_grads("backward_weight()", sight.result)

    def _put_by_hand(self, lane: Lane, mb: int, sight: Sight) -> None:
        del sight
        node = next(tensor.grad_fn for tensor in tensors(lane.outputs[mb]))
        put = getattr(lane.session, "put_weight_context", None)
        if put is None:
            msg = "the session has no put_weight_context"
            raise UnsupportedError(msg)
        put(mb, node, self.materials.hand_grads(lane.index, mb))

    def _send(self, lane: Lane, mb: int, sight: Sight) -> None:
        del sight
        release = getattr(lane.session, "release_outputs", None)
        if release is None:
            msg = "the session has no release_outputs"
            raise UnsupportedError(msg)
        self._call("send", release, mb, self.trial.unsent)
        lane.outputs.pop(mb)

    def _overwrite(self, lane: Lane, mb: int, sight: Sight) -> None:
        del sight
        written = [grad for grad in lane.returned.pop(mb) if isinstance(grad, Tensor)]
        self.kept = [entry for entry in self.kept if not any(entry[1] is grad for grad in written)]
        for grad in written:
            write_over(grad)

    def _reopen(self, lane: Lane, mb: int, sight: Sight) -> None:
        del mb, sight
        self._call("reopen", lane.reopen)

    def _close(self, lane: Lane, mb: int, sight: Sight) -> None:
        del mb, sight
        self._call("close", lane.close)

    def _finish(self, lane: Lane, mb: int, sight: Sight) -> None:
        del mb
        self._call("finish", lane.session.finish)
        if not self.is_cpu:
            self._locate(sight, "parameter", "parameter", lane.stage.named_parameters())
            self._locate(sight, "buffer", "buffer", lane.stage.named_buffers())

    def _locate(self, sight: Sight, sort: Sort, prefix: str, named: Iterable[tuple[object, Any]]) -> None:
        """Record which tensors are not on the trial's device."""
        for name, value in named:
            if value is None or not isinstance(value, Tensor) or (self.is_cpu and value.is_cpu):  # common, and quick
                continue
            if not sits_on(value.device, self.materials.device):
                sight.keep_misplaced(sort, f"{prefix} {name}", value.device)

    def _look(self, lane: Lane, sight: Sight) -> None:  # noqa: C901 (each call would cost 17 per check)
        """Record the gradients and state after an action."""
        action = sight.action
        watch = self.trial.watch
        if lane.lifetime:
            sight.seen.update(lane.lifetime.seen(ended=action.kind == "finish", allowed=sight.known.alive))
        if "growth" in watch:
            self._count(sight)
            return
        try:
            with self.alone:
                stored = lane.param_grads if lane.closed else lane.session.param_grads()
            if type(stored) is not dict or not GRADIENTS.issuperset(map(type, stored.values())):  # not common
                stored = named_grads(stored)
            stored = lane.altering.stored(stored) if lane.altering else stored
            if lane.buffer:
                own, stored = stored, {**stored, **lane.buffer}
                if any(map(is_not, map(own.get, lane.buffer), lane.buffer.values())):
                    sight.seen["beside_buffer"] = copies_by_name({name: own.get(name) for name in lane.buffer})
        except BaseException as error:  # noqa: BLE001 (as in _act)
            sight.raised = sight.raised or self._raised(error, call="param_grads()")
            return
        for name, grad in stored.items():
            if grad is not None and grad.requires_grad:
                begins = grad.grad_fn.name() if grad.grad_fn else ""
                sight.seen.setdefault("recorded", {})[name] = begins
        known, before = sight.known.param_grads, lane.param_grads
        sight.seen["param_grads"] = lane.param_grads = copies = copies_by_name(stored, known, before)
        sight.stored = stored
        # The copies of a closed session's gradients are known, and are on the CPU.
        if not (lane.closed or (self.is_cpu and (copies is known or copies is before))):
            self._locate(sight, "parameter gradient", "gradient of", stored.items())
        if action.mb in lane.args:
            grads = [arg.grad if isinstance(arg, Tensor) and arg.is_leaf else None for arg in lane.args[action.mb]]
            sight.seen["arg_grads"] = copies_of(grads, sight.known.arg_grads)
        if lane.hooks:
            sight.seen["hook_calls"] = lane.hooks.take()
        if "state" in watch:
            self._look_around(lane, sight, stored)

    def _count(self, sight: Sight) -> None:
        """Record how many tensors are alive, and keep none: a copy would count as growth."""
        sight.result = None
        sight.seen.update(input_grads=None, outputs=None, weight_result=None, loss=None)
        if sight.action.kind == "drop" and sight.action.mb in COUNTED:
            sight.seen["live_tensors"] = live_tensors(self.collections)

    def _look_around(self, lane: Lane, sight: Sight, stored: Mapping[str, Tensor | None]) -> None:
        """Record the state that an action must not change."""
        around = Surroundings.of(lane.named, lane.args, lane.output_grads)
        process = settings(self.materials.device, self.before) | self.changes
        self.changes.clear()
        earlier = sight.known.state, lane.state
        lane.state = around.state(self.materials.device, lane.passed_objects(), *earlier, process=process)
        sight.seen.update(
            state=lane.state,
            shared=shared_storage(lane.returned, stored, around),
            grad_addresses={name: place_of(grad) for name, grad in stored.items() if grad is not None},
        )


_SESSION_ACTS: dict[str, Callable[[_Run, Lane, int, Sight], None]] = {
    "F": _Run._forward,  # noqa: SLF001 (the table belongs to the class)
    "B": partial(_Run._backward, method="backward"),  # noqa: SLF001 (as above)
    "I": partial(_Run._backward, method="backward_input"),  # noqa: SLF001 (as above)
    "W": _Run._weight,  # noqa: SLF001 (as above)
    "G": _Run._put_by_hand,  # noqa: SLF001 (as above)
    "send": _Run._send,  # noqa: SLF001 (as above)
    "lose": _Run._lose,  # noqa: SLF001 (as above)
    "evaluate": _Run._evaluate,  # noqa: SLF001 (as above)
    "overwrite": _Run._overwrite,  # noqa: SLF001 (as above)
    "reopen": _Run._reopen,  # noqa: SLF001 (as above)
    "close": _Run._close,  # noqa: SLF001 (as above)
    "finish": _Run._finish,  # noqa: SLF001 (as above)
}
#: Every kind of action.
KINDS = frozenset(_SESSION_ACTS) | frozenset(CALLER_ACTS)
