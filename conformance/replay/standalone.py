"""The main program of a replay script: plain autograd and an implementation, compared action by action.

The parts that a trial and its judge need are copied into a script. A script defines the names that they read: STAGES
(makers of the stages), ARGS, OUTPUT_GRADS, HAND_GRADS and TARGETS (by stage and micro-batch), SEEDS, PROGRAM, COMPARED,
LANES and TOLERANCE. The other names are known when the script is written, and code that they rule out is dropped: see
Replayed.known. Imports from gradconform are copied as text too, so that a script needs only torch and the standard
library; a script of an adapter imports gradconform.adapter. This is the only copy of gradconform.drive.driver, and
tests/replay/test_standalone.py compares the two.
"""

from __future__ import annotations

import gc
import importlib
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gradconform.drive.caller_acts import evaluate
from gradconform.drive.gradient_hooks import GradientHooks
from gradconform.drive.process_state import Handed, changes_noted, left_on, settings, state_outside_torch
from gradconform.drive.receive_buffers import ReceiveBuffers, tracked
from gradconform.drive.stage_changes import (
    change_in_place,
    into_bucket,
    rebind_parameters,
    replace_data,
    restride_grads,
    tie,
    write_over,
)
from gradconform.drive.upstream_graph import UpstreamGraph
from gradconform.fixtures.grad_tuples import one_for_alike
from gradconform.reference.autograd import AutogradSession, leaf_of
from gradconform.target.functions import FULL, SPLIT, FunctionsSession
from gradconform.trees import as_tuple, leaves, tensors
from gradconform.trial.materials import mean_squares
from gradconform.trial.modes import call_in

from .adapter_opening import made, not_due, shaped, spec_of
from .comparison import Step, copy, differences, excerpt, other_bits, same, worst

if TYPE_CHECKING:
    CHAIN = LOSS = MAY_REFUSE = REPEATS_WEIGHT = RETAIN_GRAPH = SAME_ARGS = False
    CALLS_KEPT = GIVEN_KEPT = RETURNED_KEPT = SEEN_LAST = False
    ADAPTER = NOT_ALWAYS_DUE = NESTED = False
    WATCHED: list[str]
    ONE_MODULE = TRACKED_GRADS = UPSTREAM = KEPT_LISTS = False
    IMPLEMENTATION = FOLDER = PROGRAM = DEVICE = ALTERING = RECEIVED = WEIGHTS = ""
    TIED: tuple[str, ...]
    RAISING: tuple[int, ...]
    UNSENT: tuple[int, ...]
    RETAINED: tuple[int, ...]
    IN_MODES: frozenset[str]
    LOSS_SCALE = TOLERANCE = 0.0
    REPEATS = 0
    LANES: list[int]
    SEEDS: dict[int, int]
    COMPARED: set[str]
    STAGES: list[Callable[[], nn.Module]]
    ARGS: dict[tuple[int, int | str], Callable[[nn.Module], tuple[Any, ...]]]
    OUTPUT_GRADS: dict[Any, Callable[[], Any]]
    HAND_GRADS, TARGETS = OUTPUT_GRADS, OUTPUT_GRADS


def loss_of(outputs: Any, target: Any) -> Tensor:
    return mean_squares(outputs, target) if LOSS_SCALE == 1.0 else mean_squares(outputs, target) * LOSS_SCALE


class InModes:
    """Makes every call of a session in the process modes of the trial."""

    def __init__(self, plain: Any, changes: dict[str, Any]) -> None:
        self.plain, self.changes = plain, changes

    def forward(self, *given: Any) -> Any:
        return self.called("F", self.plain.forward, *given)

    def backward(self, *given: Any) -> Any:
        return self.called("B", self.plain.backward, *given)

    def backward_input(self, *given: Any) -> Any:
        return self.called("I", self.plain.backward_input, *given)

    def backward_weight(self, *given: Any) -> Any:
        return self.called("W", self.plain.backward_weight, *given)

    def __getattr__(self, name: str) -> Any:
        """Return a session's attribute that needs no mode."""
        return getattr(self.plain, name)

    def called(self, kind: str, call: Callable[..., Any], *given: Any) -> Any:
        return call_in(IN_MODES, kind, torch.device(DEVICE), partial(self.noted, call, *given))

    def noted(self, call: Callable[..., Any], *given: Any) -> Any:
        with changes_noted(torch.device(DEVICE), self.changes):
            return call(*given)


class Lane:
    """One stage, its caller's objects for each micro-batch, and the actions of a program on it."""

    def __init__(self, lanes: list[Lane], functions: Any) -> None:
        self.lanes, self.number, self.functions = lanes, len(lanes), functions
        self.stage: nn.Module = lanes[0].stage if ONE_MODULE and lanes else STAGES[self.number]()
        self.stopped = False
        if RAISING:
            self.failed: set[int] = set()
        if TIED and lanes:
            tie(self.stage, lanes[0].stage, TIED)
        if ALTERING:
            self.altering = GradientHooks(self.stage, ALTERING)
        self.last: bool = not CHAIN or self.number == len(STAGES) - 1
        self.args: dict[int, Any] = {}
        self.outputs: dict[int, Any] = {}
        self.grads: dict[int, Any] = {}
        self.returned: dict[int, Any] = {}
        self.kept: list[tuple[str, Tensor, Tensor]] = []
        self.handed: dict[int, Handed] = {}
        self.places: dict[str, int] = {}
        if RECEIVED:
            self.received = ReceiveBuffers()
            self.one_grad: Any = None
        if UPSTREAM:
            self.upstream = UpstreamGraph()
        self.changes: dict[str, Any] = {}
        self.calls: list[tuple[str, str, Any]] = []
        self.handles: list[Any] = []
        if "what the process is set to:" in COMPARED:
            self.before = state_outside_torch()
        if "module_hooks" in WATCHED:
            self.hook_modules()
        if "hooks" in WATCHED:
            self.hook_parameters()
        self.start()

    def start(self) -> None:
        if ADAPTER:
            self.closed = False
        if ADAPTER and self.functions:
            opening = partial(self.functions.open, self.stage, spec_of(self.number))
            self.session: Any = call_in(IN_MODES, "open", torch.device(DEVICE), opening) if IN_MODES else opening()
        else:
            self.start_functions()
        if IN_MODES:
            self.session = InModes(self.session, self.changes)

    def reopen(self) -> None:
        if ADAPTER:
            self.close()
        self.start()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.session.close()

    def start_functions(self) -> None:
        spec: Any = SimpleNamespace(
            loss_fn=loss_of if LOSS and self.last else None, repeats_weight=REPEATS_WEIGHT, retain_graph=RETAIN_GRAPH
        )
        if KEPT_LISTS:
            spec.kept_lists = KEPT_LISTS
        if RETAINED:
            spec.retained = RETAINED
        if WEIGHTS:
            spec.weights = WEIGHTS
        if ADAPTER or self.functions is None:
            self.session = AutogradSession(self.stage, spec)
        else:
            named = {name: getattr(self.functions, name) for name in (FULL, *SPLIT) if hasattr(self.functions, name)}
            self.session = FunctionsSession(named, self.stage, spec)

    def run_forward(self, mb: int) -> Step:
        if CHAIN and self.number:
            self.args[mb] = tuple(map(leaf_of, as_tuple(self.lanes[self.number - 1].outputs[mb])))
        elif SAME_ARGS and self.args:
            self.args[mb] = next(iter(self.args.values()))
        else:
            self.args[mb] = self.fed(mb)
        torch.manual_seed(SEEDS[mb])
        self.outputs[mb] = self.session.forward(
            mb, self.args[mb], TARGETS[self.number, mb]() if LOSS and self.last else None
        )
        return {"output": copy(dict(enumerate(o for _, o in leaves(as_tuple(self.outputs[mb])))))}

    def fed(self, mb: int) -> Any:
        args = ARGS[self.number, mb](self.stage)
        if UPSTREAM:
            return self.upstream.args(mb, args)
        return self.received.received(mb, args) if RECEIVED == "inputs" else args

    def lose(self, mb: int) -> None:
        torch.manual_seed(SEEDS[mb])
        target = TARGETS[self.number, mb]() if LOSS and self.last else None
        self.session.forward(mb, ARGS[self.number, f"lost {mb}"](self.stage), target)

    def output_grads(self, mb: int, token: str) -> Any:
        if LOSS and self.last:
            return None
        if CHAIN and self.number < len(STAGES) - 1:
            return tuple(g if g is None else g.detach() for g in self.lanes[self.number + 1].returned.pop(mb))
        grads = OUTPUT_GRADS[(self.number, mb, "misuse") if token.endswith("!") else (self.number, mb)]()
        if NESTED and not token.endswith("!"):
            grads = shaped(grads, self.number)
        if RECEIVED == "twice":
            grads = one_for_alike(grads)
        if TRACKED_GRADS:
            tracked(grads)
        if RECEIVED == "once":
            self.one_grad = grads if self.one_grad is None else self.one_grad
            return self.one_grad
        return self.received.received(mb, grads) if RECEIVED == "grads" else grads

    def run_backward(self, mb: int, token: str, method: Callable[[int, Any], Any]) -> Step:
        grads = self.output_grads(mb, token)
        if "as handed over:" in COMPARED:
            self.handed[mb] = Handed(grads)
        if GIVEN_KEPT:
            self.grads[mb] = grads
        returned = tuple(method(mb, grads))
        if UPSTREAM:
            self.upstream.returned(mb, returned)
        if RETURNED_KEPT:
            self.returned[mb] = returned
        given = {slot: grad for slot, grad in enumerate(returned) if isinstance(grad, Tensor)}
        if "changed later:" in COMPARED:
            self.kept += [(f"input gradient {slot} returned by {token}", g, g.clone()) for slot, g in given.items()]
        seen = {"the gradient of input": copy(dict(enumerate(returned)))}
        if "requires_grad of the gradient of input" in COMPARED:
            seen["requires_grad of the gradient of input"] = {slot: g.requires_grad for slot, g in given.items()}
        if "contiguous: the gradient of input" in COMPARED:
            lying = {slot: grad.layout != torch.strided or grad.is_contiguous() for slot, grad in given.items()}
            seen["contiguous: the gradient of input"] = lying
        return seen

    def run_weight(self, mb: int) -> Step:
        before = copy(self.stored())
        result, plain = self.session.backward_weight(mb) or (), self.functions is None
        if plain:
            result = [parameter.grad for parameter in self.stage.parameters()]
        seen = copy(dict(zip(before, result, strict=False)))
        seen_after: Step = {"what W returns for": {**seen, "all parameters, in number": len(result)}}
        if plain:  # W may return the gradients stored after it, or those that it added
            seen_after["added by W to"] = {
                name: now if now is None or before[name] is None else now - before[name] for name, now in seen.items()
            }
        return seen_after

    def put_by_hand(self, mb: int) -> None:
        node = next(o.grad_fn for _, o in leaves(as_tuple(self.outputs[mb])) if isinstance(o, Tensor))
        self.session.put_weight_context(mb, node, HAND_GRADS[self.number, mb]())

    def send(self, mb: int) -> None:
        self.session.release_outputs(mb, UNSENT)
        del self.outputs[mb]

    def drop(self, mb: int) -> None:
        for name in ("args", "outputs", "grads", "returned", "handed"):
            getattr(self, name, {}).pop(mb, None)

    def overwrite(self, mb: int) -> None:
        written = [grad for grad in self.returned.pop(mb) if isinstance(grad, Tensor)]
        if "changed later:" in COMPARED:
            self.kept = [one for one in self.kept if not any(one[1] is grad for grad in written)]
        for grad in written:
            write_over(grad)

    def receive(self, mb: int) -> None:
        for grad in tensors(self.grads[mb]):
            write_over(grad)

    def hook_parameters(self) -> None:
        for name, parameter in self.stage.named_parameters():
            if parameter.requires_grad:
                after = partial(self.note, "post_accumulate", name)
                self.handles.append(parameter.register_hook(partial(self.note, "tensor", name)))
                self.handles.append(parameter.register_post_accumulate_grad_hook(after))

    def hook_modules(self) -> None:
        for name, module in self.stage.named_modules():
            if not list(module.children()):
                self.handles.append(module.register_full_backward_hook(partial(self.note, "module", name)))

    def note(self, kind: str, name: str, given: Any, *_: Any) -> None:
        grad = {"tensor": given, "post_accumulate": getattr(given, "grad", None)}.get(kind)
        self.calls.append((kind, name, copy(grad)))

    def unhook(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles = []

    def stored(self) -> dict[str, Tensor | None]:
        stored: dict[str, Tensor | None]
        if ADAPTER:
            stored = self.session.param_grads()
        else:
            stored = {name: parameter.grad for name, parameter in self.stage.named_parameters()}
        return self.altering.stored(stored) if ALTERING else stored

    def strides(self) -> dict[str, tuple[int, ...]]:
        stored = self.stored().items()
        return {n: grad.stride() for n, grad in stored if grad is not None and grad.layout == torch.strided}

    def passed_objects(self) -> dict[str, bool]:
        kept = {f"the list of output gradients of micro-batch {mb}": one.unchanged for mb, one in self.handed.items()}
        return kept | left_on(self.args)

    def process(self) -> dict[str, Any]:
        changes = dict(self.changes)
        self.changes.clear()
        return settings(torch.device(DEVICE), self.before) | changes

    def arg_grads(self, mb: int) -> dict[int, Any]:
        grads = [arg.grad if isinstance(arg, Tensor) and arg.is_leaf else None for arg in self.args[mb]]
        copied: dict[int, Any] = copy(dict(enumerate(grads)))
        return copied

    def noted(self) -> dict[str, int]:
        called: list[str] = vars(self.stage).get("called", [])
        counted = Counter(called)
        called.clear()
        return counted

    def counted(self, hook: str) -> dict[str, int]:
        return Counter(name for kind, name, _ in self.calls if kind == hook)

    def given_to(self, hook: str) -> dict[tuple[str, int], Any]:
        calls = [(name, grad) for kind, name, grad in self.calls if kind == hook]
        return {(name, sum(other == name for other, _ in calls[:n])): grad for n, (name, grad) in enumerate(calls)}

    def moved(self) -> dict[str, bool]:
        stored = self.stored().items()
        now = {name: address(grad) for name, grad in stored if grad is not None and grad.numel()}
        moved = {name: self.places.setdefault(name, place) != place for name, place in now.items()}
        self.places.update(now)
        return moved

    def flags(self) -> dict[str, bool]:
        flags = {name: one.requires_grad for name, one in self.stage.named_parameters()}
        flags |= {f"argument {name}": arg.requires_grad for name, arg in by_name(self.args).items()}
        return flags

    def shared(self, *, stored: bool) -> dict[tuple[str, str], bool]:
        """Return the pairs of names, one of them a gradient returned or stored, whose tensors share memory."""
        held = {"input gradient": by_name(self.returned), "gradient of": self.stored()}
        held |= {"output gradient": by_name(self.grads), "argument": by_name(self.args)}
        held |= {"parameter": dict(self.stage.named_parameters())}
        tensors = [(f"{kind} {name}", kind, one) for kind, named in held.items() for name, one in named.items()]
        found = [(name, kind in {"input gradient", "gradient of"}, places(one)) for name, kind, one in tensors]
        pairs = [(a[0], b[0]) for a, b in combinations(found, 2) if (a[1] or b[1]) and not a[2].isdisjoint(b[2])]
        return {pair: True for pair in pairs if any(name.startswith("gradient of ") for name in pair) is stored}


#: The actions by kind, given the lane, the micro-batch and the token.
ACTS: dict[str, Callable[[Lane, int, str], Any]] = {
    "F": lambda lane, mb, _: lane.run_forward(mb),
    "B": lambda lane, mb, token: lane.run_backward(mb, token, lane.session.backward),
    "I": lambda lane, mb, token: lane.run_backward(mb, token, lane.session.backward_input),
    "W": lambda lane, mb, _: (
        lane.run_weight(mb) if "what W returns for" in COMPARED else lane.session.backward_weight(mb)
    ),
    "G": lambda lane, mb, _: lane.put_by_hand(mb),
    "zero_none": lambda lane, *_: lane.stage.zero_grad(set_to_none=True),
    "zero_fill": lambda lane, *_: lane.stage.zero_grad(set_to_none=False),
    "lose": lambda lane, mb, _: lane.lose(mb),
    "evaluate": lambda lane, mb, _: evaluate(lane.stage, ARGS[lane.number, mb](lane.stage)),
    "drop": lambda lane, mb, _: lane.drop(mb),
    "send": lambda lane, mb, _: lane.send(mb),
    "overwrite": lambda lane, mb, _: lane.overwrite(mb),
    "receive": lambda lane, mb, _: lane.receive(mb),
    "hook": lambda lane, *_: lane.hook_parameters(),
    "unhook": lambda lane, *_: lane.unhook(),
    "freeze": lambda lane, index, _: [*lane.stage.parameters()][index].requires_grad_(False),  # noqa: FBT003 (torch's own)
    "unfreeze": lambda lane, index, _: [*lane.stage.parameters()][index].requires_grad_(True),  # noqa: FBT003 (torch's own)
    "step": lambda lane, *_: change_in_place(lane.stage),
    "replace": lambda lane, *_: replace_data(lane.stage),
    "rebind": lambda lane, *_: rebind_parameters(lane.stage),
    "restride": lambda lane, *_: restride_grads(lane.stage),
    "bucket": lambda lane, *_: into_bucket(lane.stage),
    "collect": lambda *_: gc.collect(1),
    "reopen": lambda lane, *_: lane.reopen(),
    "finish": lambda lane, *_: lane.session.finish() if ADAPTER else None,
    "close": lambda lane, *_: lane.close() if ADAPTER else None,
}
#: The observations after every action, given the lane, the kind of the action and the micro-batch.
SEEN: dict[str, Callable[[Lane, str, int], Any]] = {
    "the gradient of": lambda lane, *_: copy(lane.stored()),
    "requires_grad of what accumulates:": lambda lane, *_: {
        name: grad.requires_grad for name, grad in lane.stored().items() if grad is not None
    },
    "strides of the gradient of": lambda lane, *_: lane.strides(),
    "what the process is set to:": lambda lane, *_: lane.process(),
    "as handed over:": lambda lane, *_: lane.passed_objects(),
    ".grad of input": lambda lane, kind, mb: lane.arg_grads(mb) if kind in {"B", "I"} and mb in lane.args else {},
    "calls of the tensor hook of": lambda lane, *_: lane.counted("tensor"),
    "calls of the post_accumulate hook of": lambda lane, *_: lane.counted("post_accumulate"),
    "calls of the module hook of": lambda lane, *_: lane.counted("module"),
    "calls of the own hook of": lambda lane, *_: lane.noted(),
    "the gradient given to the tensor hook of": lambda lane, *_: lane.given_to("tensor"),
    "the gradient given to the post_accumulate hook of": lambda lane, *_: lane.given_to("post_accumulate"),
    "the gradient given to the module hook of": lambda lane, *_: lane.given_to("module"),
    "requires_grad of": lambda lane, *_: lane.flags(),
    "argument": lambda lane, *_: copy(by_name(lane.args)),
    "output gradient": lambda lane, *_: copy(by_name(lane.grads)),
    "parameter": lambda lane, *_: copy(dict(lane.stage.named_parameters())),
    "buffer": lambda lane, *_: copy(dict(lane.stage.named_buffers())),
    "is wrong:": lambda lane, kind, _: lane.upstream.go_on() if UPSTREAM and kind == "finish" else {},
    "the generator's state": lambda *_: {"": torch.get_rng_state()},
    "moved to other storage: the gradient of": lambda lane, *_: lane.moved(),
    "shared with a stored gradient:": lambda lane, *_: lane.shared(stored=True),
    "shared with a returned gradient:": lambda lane, *_: lane.shared(stored=False),
}


def run(functions: Any) -> list[Step]:
    """Run the program under plain autograd (None) or an implementation, and return the observations."""
    lanes: list[Lane] = []
    for _ in STAGES:
        lanes.append(Lane(lanes, functions))
    steps: list[Step] = []
    for token in PROGRAM.split():
        number, kind, mb = re.fullmatch(r"(\d*)([A-Za-z_]+)(\d*)!?", token).groups()  # type: ignore[union-attr]  # the kit wrote it
        lane = lanes[int(number or 0)]
        step: Step = {"token": token, "lane": lane.number, "misuse": token.endswith("!"), "raised": None}
        steps.append(step)
        if lane.stopped or (RAISING and kind == "W" and int(mb) in lane.failed):
            continue
        if RAISING:
            vars(lane.stage)["raising"] = bool(mb) and int(mb) in RAISING
        try:
            seen = ACTS[kind](lane, int(mb or 0), token)
            step |= seen if isinstance(seen, dict) else {}
            if RECEIVED:
                lane.received.after(kind, int(mb or 0))
        except (Exception, SystemExit, GeneratorExit) as error:  # noqa: BLE001 (the exception is the observation)
            step["raised"] = f"{type(error).__name__}: {error}"
            if RAISING and kind == "I" and int(mb) in RAISING:
                lane.failed.add(int(mb))
        step |= {what: see(lane, kind, int(mb or 0)) for what, see in SEEN.items()}
        if NOT_ALWAYS_DUE:
            leave_out(step, steps)
        if CALLS_KEPT:
            lane.calls.clear()
        lane.stopped = step["raised"] is not None and not step["misuse"]
        if CHAIN:
            for one in lanes:
                one.stopped = lane.stopped
    if ADAPTER:
        close(lanes)
    return [*steps, the_end(lanes, steps)] if SEEN_LAST else steps


def close(lanes: list[Lane]) -> None:
    for lane in lanes:
        lane.close()


def leave_out(step: Step, steps: list[Step]) -> None:
    if not_due(steps, step["lane"]):
        step.pop("the gradient of", None)
        step.pop("requires_grad of what accumulates:", None)


def the_end(lanes: list[Lane], steps: list[Step]) -> Step:
    end: Step = {"token": "the end", "lane": LANES[0], "misuse": False, "raised": None}
    if "changed later:" in COMPARED:
        kept = [(name, not same(now, then, 0.0)) for lane in lanes for name, now, then in lane.kept]
        # The same action of a later step has the same name: changed values are sorted last, so that they are kept.
        end["changed later:"] = dict(sorted(kept, key=lambda one: one[1]))
    if "whether called: the module hook of" in COMPARED:
        called = {name: True for step in steps for name in step.get("calls of the module hook of", ())}
        end["whether called: the module hook of"] = called
    if "buffer in the end" in COMPARED:
        end["buffer in the end"] = copy(dict(lanes[LANES[0]].stage.named_buffers()))
    return end


def by_name(held: dict[int, Any]) -> dict[str, Any]:
    return {
        f"{slot} of micro-batch {mb}": leaf
        for mb, tree in held.items()
        for slot, (_, leaf) in enumerate(leaves(tree))
        if isinstance(leaf, Tensor)
    }


def address(tensor: Tensor) -> int:
    """Return the address of a tensor's first value; the id of the object if a device shows no address."""
    try:
        return tensor.data_ptr() or id(tensor)
    except (NotImplementedError, RuntimeError):
        return id(tensor)


def places(tensor: Any) -> set[int]:
    """Return the address of every element; empty unless the tensor is dense."""
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or not tensor.numel():
        return set()
    found = torch.tensor(address(tensor))
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        found = found.unsqueeze(-1) + torch.arange(size) * stride * tensor.element_size()
    return set(found.flatten().tolist())


def other_runs(functions: Any, first: list[Step]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the differences of other runs of the same program: from plain autograd, or in bits from the first run."""
    ballast: list[object] = []
    for count in range(1, REPEATS):
        ballast += [object() for _ in range(37 * count % 101)]  # another address for the next objects
        plain, again = run(None), run(functions)
        yield from differences(plain, again)
        if "bits" in COMPARED:
            yield from other_bits(first, again)


def main() -> int:
    """Compare an implementation with plain autograd; return 1 if it is wrong."""
    where, _, attribute = (sys.argv[1] if len(sys.argv) > 1 else IMPLEMENTATION).partition(":")
    if ADAPTER:
        sys.path.insert(0, FOLDER)
    functions = importlib.import_module(where)
    functions = getattr(functions, attribute) if attribute else functions
    functions = made(functions) if ADAPTER else functions
    plain, tried = run(None), run(functions)
    wrong = list(differences(plain, tried))
    if REPEATS > 1:
        wrong += other_runs(functions, tried)
    for what, expected, got in wrong[:5]:
        place = worst(expected, got)
        shown = f"  expected {excerpt(expected, place)}\n  got      {excerpt(got, place)}"
        print(f"{what}:\n{shown}")  # noqa: T201 (this is what a script is for)
    verdict = f"WRONG: {len(wrong)} things differ from" if wrong else "right: all compared things are those of"
    print(f"{verdict} plain autograd")  # noqa: T201 (as above)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
