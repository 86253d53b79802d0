"""What a replay script runs: plain autograd and an implementation, action by action, and what differs between them.

The text of this module goes into every script, below the names that it takes from there: STAGES (makers of the stages),
ARGS, OUTPUT_GRADS, HAND_GRADS and TARGETS (by stage and micro-batch), SEEDS, PROGRAM, CHAIN, LOSS, LOSS_SCALE,
SAME_ARGS, RETAIN_GRAPH, REPEATS, MAY_REFUSE, WATCHED, COMPARED, LANES, TOLERANCE. What it imports from gradconform goes
there as text too, so that a script needs nothing but torch and the standard library. It is the one copy of
gradconform.drive.driver, and tests/replay/test_standalone.py holds it against that.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import combinations
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gradconform.drive.watches import write_over
from gradconform.reference.autograd import AutogradSession, leaf_of
from gradconform.target.functions import FULL, SPLIT, FunctionsSession
from gradconform.trees import as_tuple, leaves, tensors
from gradconform.trial.materials import mean_squares

if TYPE_CHECKING:
    CHAIN = LOSS = MAY_REFUSE = RETAIN_GRAPH = SAME_ARGS = False
    IMPLEMENTATION = PROGRAM = ""
    LOSS_SCALE = TOLERANCE = 0.0
    REPEATS = 0
    LANES: list[int]
    SEEDS: dict[int, int]
    COMPARED: set[str]
    WATCHED: list[str]
    STAGES: list[Callable[[], nn.Module]]
    ARGS: dict[tuple[int, int], Callable[[nn.Module], tuple[Any, ...]]]
    OUTPUT_GRADS: dict[Any, Callable[[], Any]]
    HAND_GRADS, TARGETS = OUTPUT_GRADS, OUTPUT_GRADS

#: What one action showed: its token, what it raised, and by what it is called what was seen under which name.
Step = dict[str, Any]

#: What no arithmetic touches, and what an implementation need not do because plain autograd does it.
EXACT = {"argument", "output gradient", "parameter", "the generator's state"}
ALLOWED = {
    "moved to other storage: the gradient of",
    "requires_grad of the gradient of input",
    "shared with a stored gradient:",
    "shared with a returned gradient:",
    "changed later:",
}


def loss_of(outputs: Any, target: Any) -> Tensor:
    loss = mean_squares(outputs, target)
    return loss if LOSS_SCALE == 1.0 else loss * LOSS_SCALE


class Lane:
    """One stage, what its caller holds of each micro-batch, and what a program does with it."""

    def __init__(self, lanes: list[Lane], functions: Any) -> None:
        self.lanes, self.number, self.functions = lanes, len(lanes), functions
        self.stage, self.stopped = STAGES[self.number](), False
        self.last = LOSS and (not CHAIN or self.number == len(STAGES) - 1)
        self.args: dict[int, Any] = {}
        self.outputs: dict[int, Any] = {}
        self.grads: dict[int, Any] = {}
        self.returned: dict[int, Any] = {}
        self.kept: list[tuple[str, Tensor, Tensor]] = []
        self.places: dict[str, int] = {}
        self.calls: list[tuple[str, str, Any]] | None = None
        self.handles: list[Any] = []
        if {"hooks", "module_hooks"}.intersection(WATCHED):
            self.hook(modules="module_hooks" in WATCHED)
        self.open()

    def open(self) -> None:
        again = any(token.lstrip("0123456789")[0] == "W" and token.endswith("!") for token in PROGRAM.split())
        loss_fn = loss_of if self.last else None
        spec: Any = SimpleNamespace(loss_fn=loss_fn, repeats_weight=again, retain_graph=RETAIN_GRAPH)
        three = {name: getattr(self.functions, name) for name in (FULL, *SPLIT) if hasattr(self.functions, name)}
        self.session: Any = (
            FunctionsSession(three, self.stage, spec) if self.functions else AutogradSession(self.stage, spec)
        )

    def forward(self, mb: int) -> Step:
        if CHAIN and self.number:
            handed = as_tuple(self.lanes[self.number - 1].outputs[mb])
            args = tuple(map(leaf_of, handed))
        else:
            args = next(iter(self.args.values())) if SAME_ARGS and self.args else ARGS[self.number, mb](self.stage)
        self.args[mb] = args
        target = TARGETS[self.number, mb]() if self.last else None
        torch.manual_seed(SEEDS[mb])
        self.outputs[mb] = self.session.forward(mb, args, target)
        return {"output": copy(dict(enumerate(o for _, o in leaves(as_tuple(self.outputs[mb])))))}

    def backward(self, mb: int, token: str, method: Callable[[int, Any], Any]) -> Step:
        if self.last:
            grads = None
        elif CHAIN and self.number < len(STAGES) - 1:
            grads = tuple(g if g is None else g.detach() for g in self.lanes[self.number + 1].returned.pop(mb))
        else:
            grads = OUTPUT_GRADS[(self.number, mb, "misuse") if token.endswith("!") else (self.number, mb)]()
        self.grads[mb] = grads
        self.returned[mb] = returned = tuple(method(mb, grads))
        given = {slot: grad for slot, grad in enumerate(returned) if isinstance(grad, Tensor)}
        if "state" in WATCHED:
            self.kept += [(f"input gradient {slot} returned by {token}", g, g.clone()) for slot, g in given.items()]
        return {
            "the gradient of input": copy(dict(enumerate(returned))),
            "requires_grad of the gradient of input": {slot: grad.requires_grad for slot, grad in given.items()},
            "contiguous: the gradient of input": {
                slot: grad.layout != torch.strided or grad.is_contiguous() for slot, grad in given.items()
            },
        }

    def weight(self, mb: int) -> Step:
        before = copy({name: parameter.grad for name, parameter in self.stage.named_parameters()})
        result, plain = self.session.backward_weight(mb) or (), isinstance(self.session, AutogradSession)
        if plain:
            result = [parameter.grad for parameter in self.stage.parameters()]
        seen = copy(dict(zip(before, result, strict=False)))
        told: Step = {"what W returns for": {**seen, "all parameters, in number": len(result)}}
        if plain:  # W may return what stands after it, or what it added
            told["added by W to"] = {
                name: now if now is None or before[name] is None else now - before[name] for name, now in seen.items()
            }
        return told

    def put_by_hand(self, mb: int) -> None:
        node = next(o.grad_fn for _, o in leaves(as_tuple(self.outputs[mb])) if isinstance(o, Tensor))
        self.session.put_weight_context(mb, node, HAND_GRADS[self.number, mb]())

    def drop(self, mb: int) -> None:
        for held in (self.args, self.outputs, self.grads, self.returned):
            held.pop(mb, None)

    def overwrite(self, mb: int) -> None:
        written = [grad for grad in self.returned.pop(mb) if isinstance(grad, Tensor)]
        self.kept = [one for one in self.kept if not any(one[1] is grad for grad in written)]
        for grad in written:
            write_over(grad)

    def receive(self, mb: int) -> None:
        for grad in tensors(self.grads[mb]):
            write_over(grad)

    def hook(self, *, modules: bool = False) -> None:
        """Note the calls of hooks on every parameter, or on every module without children: kind, name and gradient."""
        calls = self.calls = []

        def noting(kind: str, name: str) -> Callable[..., None]:
            def call(given: Any, *_: Any) -> None:
                grad = {"tensor": given, "post_accumulate": getattr(given, "grad", None)}.get(kind)
                calls.append((kind, name, copy(grad)))

            return call

        for name, module in self.stage.named_modules() if modules else ():
            if not list(module.children()):
                self.handles.append(module.register_full_backward_hook(noting("module", name)))
        for name, parameter in () if modules else self.stage.named_parameters():
            if parameter.requires_grad:
                self.handles.append(parameter.register_hook(noting("tensor", name)))
                self.handles.append(parameter.register_post_accumulate_grad_hook(noting("post_accumulate", name)))

    def unhook(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles, self.calls = [], None

    def after(self, kind: str, mb: int) -> Step:
        """Return what is there after an action: gradients, calls of hooks, and the state where it is watched."""
        stored = {name: parameter.grad for name, parameter in self.stage.named_parameters()}
        seen: Step = {"the gradient of": copy(stored)}
        if mb in self.args and kind in {"B", "I"}:
            grads = [arg.grad if isinstance(arg, Tensor) and arg.is_leaf else None for arg in self.args[mb]]
            seen[".grad of input"] = copy(dict(enumerate(grads)))
        for hook in ("tensor", "post_accumulate", "module") if self.calls is not None else ():
            calls = [(name, grad) for what, name, grad in self.calls or () if what == hook]
            seen[f"calls of the {hook} hook of"] = Counter(name for name, _ in calls)
            seen[f"the gradient given to the {hook} hook of"] = {
                (name, sum(other == name for other, _ in calls[:n])): grad for n, (name, grad) in enumerate(calls)
            }
        if self.calls:
            self.calls.clear()
        return {**seen, **self.state(stored)} if "state" in WATCHED else seen

    def state(self, stored: dict[str, Any]) -> Step:
        args, grads, params = by_name(self.args), by_name(self.grads), dict(self.stage.named_parameters())
        flags = {name: one.requires_grad for name, one in params.items()}
        flags |= {f"argument {name}": arg.requires_grad for name, arg in args.items()}
        now = {name: grad.data_ptr() for name, grad in stored.items() if grad is not None and grad.numel()}
        moved = {name: self.places.setdefault(name, place) != place for name, place in now.items()}
        self.places.update(now)
        held = {"input gradient": by_name(self.returned), "gradient of": stored}
        held |= {"output gradient": grads, "argument": args, "parameter": params}
        pairs = shared(held)
        of_stored = {pair for pair in pairs if any(name.startswith("gradient of ") for name in pair)}
        return {
            "requires_grad of": {**flags, "grad mode": torch.is_grad_enabled()},
            "argument": copy(args),
            "output gradient": copy(grads),
            "parameter": copy(params),
            "buffer": copy(dict(self.stage.named_buffers())),
            "the generator's state": {"": torch.get_rng_state()},
            "moved to other storage: the gradient of": moved,
            "shared with a stored gradient:": dict.fromkeys(of_stored, True),
            "shared with a returned gradient:": dict.fromkeys(pairs - of_stored, True),
        }


#: What is done for each kind of action, given the lane, the micro-batch and the token.
ACTS: dict[str, Callable[[Lane, int, str], Any]] = {
    "F": lambda lane, mb, _: lane.forward(mb),
    "B": lambda lane, mb, token: lane.backward(mb, token, lane.session.backward),
    "I": lambda lane, mb, token: lane.backward(mb, token, lane.session.backward_input),
    "W": lambda lane, mb, _: lane.weight(mb),
    "G": lambda lane, mb, _: lane.put_by_hand(mb),
    "zero_none": lambda lane, *_: lane.stage.zero_grad(set_to_none=True),
    "zero_fill": lambda lane, *_: lane.stage.zero_grad(set_to_none=False),
    "drop": lambda lane, mb, _: lane.drop(mb),
    "overwrite": lambda lane, mb, _: lane.overwrite(mb),
    "receive": lambda lane, mb, _: lane.receive(mb),
    "hook": lambda lane, *_: lane.hook(),
    "unhook": lambda lane, *_: lane.unhook(),
    "freeze": lambda lane, index, _: [*lane.stage.parameters()][index].requires_grad_(False),  # noqa: FBT003 (torch's own)
    "unfreeze": lambda lane, index, _: [*lane.stage.parameters()][index].requires_grad_(True),  # noqa: FBT003 (torch's own)
    "reopen": lambda lane, *_: lane.open(),
    "finish": lambda *_: None,
    "close": lambda *_: None,
}


def run(functions: Any) -> list[Step]:
    """Run the program under plain autograd (None) or an implementation and return what is seen."""
    lanes: list[Lane] = []
    for _ in STAGES:
        lanes.append(Lane(lanes, functions))
    steps: list[Step] = []
    for token in PROGRAM.split():
        number, kind, mb = re.fullmatch(r"(\d*)([A-Za-z_]+)(\d*)!?", token).groups()  # type: ignore[union-attr]  # the kit wrote it
        lane, misuse = lanes[int(number or 0)], token.endswith("!")
        step: Step = {"token": token, "lane": lane.number, "misuse": misuse, "raised": None}
        steps.append(step)
        if lane.stopped:
            continue
        try:
            seen = ACTS[kind](lane, int(mb or 0), token)
            step |= seen if isinstance(seen, dict) else {}
        except Exception as error:  # noqa: BLE001 (what it raises is what is seen)
            step["raised"] = f"{type(error).__name__}: {error}"
        step |= lane.after(kind, int(mb or 0))
        for one in lanes if CHAIN else [lane]:
            one.stopped = step["raised"] is not None and not misuse
    changed = {name: not same(now, then, 0.0) for lane in lanes for name, now, then in lane.kept}
    called = {name: True for step in steps for name in step.get("calls of the module hook of", ())}
    buffers = copy(dict(lanes[LANES[0]].stage.named_buffers()))
    last = {"changed later:": changed, "whether called: the module hook of": called, "buffer in the end": buffers}
    return [*steps, {"token": "the end", "lane": LANES[0], "misuse": False, "raised": None, **last}]


def by_name(held: dict[int, Any]) -> dict[str, Any]:
    return {
        f"{slot} of micro-batch {mb}": leaf
        for mb, tree in held.items()
        for slot, (_, leaf) in enumerate(leaves(tree))
        if isinstance(leaf, Tensor)
    }


def shared(held: dict[str, dict[str, Any]]) -> set[tuple[str, str]]:
    """Return the pairs of names, one of them a gradient returned or stored, whose tensors meet in memory."""
    tensors = [(f"{kind} {name}", kind, one) for kind, named in held.items() for name, one in named.items()]
    found = [(name, kind in {"input gradient", "gradient of"}, places(one)) for name, kind, one in tensors]
    return {(a[0], b[0]) for a, b in combinations(found, 2) if (a[1] or b[1]) and not a[2].isdisjoint(b[2])}


def places(tensor: Any) -> set[int]:
    """Return where every element begins in memory; of what is no dense tensor, nowhere."""
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or not tensor.numel():
        return set()
    found = torch.tensor(tensor.data_ptr())
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        found = found.unsqueeze(-1) + torch.arange(size) * stride * tensor.element_size()
    return set(found.flatten().tolist())


def copy(value: Any) -> Any:
    """Return a tensor's values, or those of all in a dict, as they are now."""
    if isinstance(value, dict):
        return {name: copy(one) for name, one in value.items()}
    return value.detach().to_dense().cpu().clone() if isinstance(value, Tensor) else value


def same(got: Any, expected: Any, tolerance: float) -> bool:
    """Tell whether two things seen are the same; numbers may differ by ``tolerance`` of the largest."""
    if not (isinstance(got, Tensor) and isinstance(expected, Tensor)):
        return not isinstance(got, Tensor) and not isinstance(expected, Tensor) and bool(got == expected)
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    got, expected = got.detach().to_dense(), expected.detach().to_dense()
    if not (got.is_floating_point() or got.is_complex()):
        return torch.equal(got, expected)
    finite = expected[torch.isfinite(expected)]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(got, expected, rtol=0.0, atol=tolerance * scale, equal_nan=True)


def differences(plain: list[Step], tried: list[Step]) -> Iterator[tuple[str, Any, Any]]:
    """Yield what is compared and not as it should be: its name, what was expected, and what was seen."""
    for number, (step, got) in enumerate(zip(plain, tried, strict=True)):
        token, expected = got["token"], step
        if got["lane"] not in LANES:
            continue
        if got["misuse"]:
            yield from refusal(got)
        elif got["raised"] is not None and (not MAY_REFUSE or "W" in token):
            yield f"{token} runs", "no error", f"raises {got['raised']}"
            continue
        elif got["raised"] is not None:
            expected = tried[number - 1]  # what is refused leaves everything as it was
        for what in sorted(COMPARED & got.keys()) if not token.endswith("finish!") else ():
            for name in {**({} if "given to" in what else expected.get(what, {})), **got[what]}:
                value, allowed = got[what].get(name, 0), wanted(what, name, expected, plain[number:])
                unjudged = (got["misuse"] and what.endswith("of input")) or (what in ALLOWED and not value)
                if allowed and not unjudged and not any(same(value, one, tolerance) for one, tolerance in allowed):
                    yield f"{what} {worded(name)} after {token}", allowed[0][0], value


def refusal(got: Step) -> Iterator[tuple[str, Any, Any]]:
    """Yield a misuse that was accepted where it may not be."""
    if got["raised"] is None and "refusal" in COMPARED:
        yield f"{got['token']} raises", "an error", "none"
    for slot, grad in got.get("the gradient of input", {}).items() if "refusal or nothing" in COMPARED else ():
        if grad is not None:
            yield f"{got['token']} raises, or returns nothing for input {slot}", None, grad


def wanted(what: str, name: Any, step: Step, later: list[Step]) -> list[tuple[Any, float]]:
    """Return the values that may be seen there, each with its tolerance; none where anything may."""
    if what == ".grad of input":
        return [(grads[name], TOLERANCE), (None, 0.0)] if (grads := step.get("the gradient of input")) else []
    if what.startswith("the gradient given to"):  # where autograd calls no hook, its next call counts
        calls: dict[Any, Any] = next((one[what] for one in later if (name[0], 0) in one.get(what, {})), {})
        return [(calls[name], 0.05)] if name in calls else []
    added = step.get("added by W to", {}) if what == "what W returns for" else {}
    tolerance = 0.0 if what in EXACT else TOLERANCE
    return [(step.get(what, {}).get(name, 0), tolerance), *([(added[name], 0.05)] if name in added else [])]


def worded(name: Any) -> str:
    """Return the name of a thing, of two that share storage, or of a hook and its call."""
    if not isinstance(name, tuple):
        return str(name)
    return f"{name[0]}, call {name[1] + 1}," if isinstance(name[1], int) else " and ".join(name)


def moved(first: list[Step], again: list[Step]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the gradients that have other bits in another run of the same program."""
    for one, other in zip(first, again, strict=True):
        for what in ("the gradient of input", "the gradient of"):
            for name, value in one.get(what, {}).items():
                got = other.get(what, {}).get(name)
                if not same(got, value, 0.0):
                    yield f"{what} {name} after {one['token']}, in another run", value, got


def main() -> int:
    """Compare an implementation with plain autograd; return 1 where it is wrong."""
    where, _, attribute = (sys.argv[1] if len(sys.argv) > 1 else IMPLEMENTATION).partition(":")
    functions = importlib.import_module(where)
    functions = getattr(functions, attribute) if attribute else functions
    ballast: list[object] = []
    first: list[Step] = []
    for count in range(REPEATS):
        ballast += [object() for _ in range(37 * count % 101)]  # another address for what is made next
        plain, tried = run(None), run(functions)
        first = first or tried
        wrong = [*differences(plain, tried), *(moved(first, tried) if "bits" in COMPARED else ())]
        seen = sum(len(step[what]) for step in plain for what in COMPARED & step.keys())
        for place, expected, got in wrong[:5]:
            print(f"{place}:\n  expected {expected}\n  got      {got}")  # noqa: T201 (this is what a script is for)
        if wrong:
            print(f"WRONG: {len(wrong)} of {seen} things seen differ from plain autograd")  # noqa: T201 (as above)
            return 1
    print(f"right: {seen} things seen are those of plain autograd")  # noqa: T201 (as above)
    return 0


if __name__ == "__main__":
    sys.exit(main())
