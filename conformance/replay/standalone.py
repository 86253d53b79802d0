"""What a replay script runs: plain autograd and an implementation, action by action, and what differs between them.

The text of this module goes into every script, below the names that it takes from there: STAGES (makers of the stages),
ARGS, OUTPUT_GRADS and TARGETS (by stage and micro-batch), SEEDS, PROGRAM, CHAIN, LOSS, LOSS_SCALE, SAME_ARGS, REPEATS,
WATCHED and TOLERANCE. It imports nothing but torch and the standard library.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    ARGS: dict[tuple[int, int], Callable[[nn.Module], tuple[Any, ...]]]
    CHAIN: bool
    IMPLEMENTATION: str
    LOSS: bool
    LOSS_SCALE: float
    OUTPUT_GRADS: dict[Any, Callable[[], Any]]
    PROGRAM: str
    REPEATS: int
    SAME_ARGS: bool
    SEEDS: dict[int, int]
    STAGES: list[Callable[[], nn.Module]]
    TARGETS: dict[tuple[int, int], Callable[[], Any]]
    TOLERANCE: float
    WATCHED: set[str]

#: What was seen: a place in words and a value, in order.
Seen = list[tuple[str, Any]]

TOKEN = re.compile(
    r"(\d*)(F|B|I|W|drop|overwrite|freeze|unfreeze)(\d+)(!?)|(\d*)(zero_none|zero_fill|hook|unhook|reopen|finish)"
)


def leaves(tree: Any) -> Iterator[Any]:
    """Yield what a tree of tuples, lists and dicts holds."""
    if isinstance(tree, dict):
        tree = [tree[key] for key in sorted(tree, key=str)]  # a gradient stands where its output does, by key
    if not isinstance(tree, (tuple, list)):
        yield tree
        return
    for branch in tree:
        yield from leaves(branch)


def loss_of(outputs: Any, target: Any) -> Tensor:
    """Return the sum over outputs of the mean square of what they differ from the target."""
    pairs = [(o, w) for o, w in zip(leaves(outputs), leaves(target), strict=True) if isinstance(o, Tensor)]
    parts = [(output - wanted).abs().square().mean() for output, wanted in pairs if wanted is not None]
    return torch.stack(parts).sum() * LOSS_SCALE


class Plain:
    """Plain autograd: I is a backward for the arguments alone, W one for the parameters alone, B is both."""

    def __init__(self, stage: nn.Module) -> None:
        self.stage, self.starts = stage, {}  # type: ignore[var-annotated] # a script is read without a type checker

    def backward_input(self, mb: int, args: tuple[Any, ...], outputs: Any, grads: Any) -> list[Any]:
        pairs = [(o, g) for o, g in zip(leaves(outputs), leaves(grads), strict=True) if isinstance(o, Tensor)]
        if grads is None:
            pairs = [(o, torch.ones_like(o)) for o in leaves(outputs)]
        roots = [(o, g) for o, g in pairs if o.requires_grad and g is not None]
        self.starts[mb] = roots
        wanted = list({id(a): a for a in args if isinstance(a, Tensor) and a.requires_grad}.values())
        before = [a.grad for a in wanted]
        for a in wanted:
            a.grad = None
        if roots and wanted:
            torch.autograd.backward([o for o, _ in roots], [g for _, g in roots], inputs=wanted, retain_graph=True)
        found = [a.grad if isinstance(a, Tensor) and a.requires_grad else None for a in args]
        for a, grad in zip(wanted, before, strict=True):
            a.grad = grad
        return found

    def backward_weight(self, mb: int) -> list[Any]:
        roots = self.starts.pop(mb)
        trainable = [p for p in self.stage.parameters() if p.requires_grad]
        if roots and trainable:
            torch.autograd.backward([o for o, _ in roots], [g for _, g in roots], inputs=trainable)
        return [p.grad for p in self.stage.parameters()]

    def backward(self, mb: int, args: tuple[Any, ...], outputs: Any, grads: Any) -> list[Any]:
        found = self.backward_input(mb, args, outputs, grads)
        self.backward_weight(mb)
        return found


class Implementation:
    """torch's three functions, called as a pipeline stage calls them."""

    def __init__(self, stage: nn.Module, functions: Any) -> None:
        self.stage, self.functions, self.groups = stage, functions, {}  # type: ignore[var-annotated] # as above

    def backward_input(self, mb: int, args: tuple[Any, ...], outputs: Any, grads: Any) -> Any:
        tensors = [o for o in leaves(outputs) if isinstance(o, Tensor)]
        if grads is not None:
            given = list(leaves(grads))
            same = len(given) == len(list(leaves(outputs)))
            grads = (
                [g for g, o in zip(given, leaves(outputs), strict=False) if isinstance(o, Tensor)] if same else grads
            )
        found, self.groups[mb] = self.functions.stage_backward_input(
            tensors, grads, list(args), self.stage.parameters()
        )
        return found

    def backward_weight(self, mb: int) -> Any:
        return self.functions.stage_backward_weight(self.stage.parameters(), self.groups.pop(mb))

    def backward(self, _: int, args: tuple[Any, ...], outputs: Any, grads: Any) -> Any:
        roots = outputs if grads is None or isinstance(outputs, (tuple, list, dict)) else (outputs,)
        return self.functions.stage_backward(roots, grads, list(args))


class Lane:
    """One stage, and what its caller holds."""

    def __init__(self, number: int, functions: Any) -> None:
        self.stage = STAGES[number]()
        self.backend: Any = Plain(self.stage) if functions is None else Implementation(self.stage, functions)
        self.args: dict[int, Any] = {}
        self.outputs: dict[int, Any] = {}
        self.roots: dict[int, Any] = {}
        self.grads: dict[int, Any] = {}
        self.returned: dict[int, Any] = {}
        self.calls: list[str] = []
        self.handles: list[Any] = []

    def hook(self) -> None:
        for name, parameter in self.stage.named_parameters():
            if parameter.requires_grad:
                call = lambda _, name=name: self.calls.append(name)  # noqa: E731 (handed on once)
                self.handles.append(parameter.register_post_accumulate_grad_hook(call))

    def hook_modules(self) -> None:
        for name, module in self.stage.named_modules():
            if not list(module.children()):
                call = lambda *_, name=name: self.calls.append(name)  # noqa: E731 (handed on once)
                self.handles.append(module.register_full_backward_hook(call))


def run(functions: Any) -> Seen:
    """Run the program under plain autograd (None) or an implementation and return what is seen."""
    lanes: dict[int, Lane] = {}
    seen: Seen = []
    kept: list[tuple[str, Tensor, Tensor]] = []
    for token in PROGRAM.split():
        match = TOKEN.fullmatch(token)
        if match is None:
            raise ValueError(token)
        number = int(match[1] or match[5] or 0)
        kind, mb, misuse = match[2] or match[6], int(match[3] or 0), bool(match[4])
        if number not in lanes:
            lanes[number] = Lane(number, functions)
            if "hooks" in WATCHED:
                lanes[number].hook()
            if "module hooks" in WATCHED:
                lanes[number].hook_modules()
        lane = lanes[number]
        if misuse:
            seen.append((f"{token} raises an error", functions is None or _raises(lanes, lane, number, kind, mb)))
        else:
            try:
                act(lanes, lane, number, kind, mb, seen, kept)
            except Exception as error:  # noqa: BLE001 (what it raises is what is seen)
                return [*seen, (f"{token} runs", f"raises {type(error).__name__}: {error}")]
        seen += after(lane, token)
    seen += [(f"{name} is still what it was", torch.equal(now, then)) for name, now, then in kept]
    return seen


def _raises(lanes: dict[int, Lane], lane: Lane, number: int, kind: str, mb: int) -> bool:
    try:
        act(lanes, lane, number, kind, mb, [], [], misuse=True)
    except Exception:  # noqa: BLE001 (that it refuses is what is asked)
        return True
    return False


def act(
    lanes: dict[int, Lane], lane: Lane, number: int, kind: str, mb: int, seen: Seen, kept: Any, *, misuse: bool = False
) -> None:
    """Run one action."""
    last = LOSS and (not CHAIN or number == len(STAGES) - 1)
    token = f"{number or ''}{kind}{mb}"
    if kind == "F":
        if CHAIN and number:
            handed = lanes[number - 1].outputs[mb]
            handed = handed if isinstance(handed, (tuple, list)) else (handed,)
            args = tuple(o.detach().requires_grad_(o.requires_grad) for o in handed)
        else:
            args = lane.args[min(lane.args)] if SAME_ARGS and lane.args else ARGS[number, mb](lane.stage)
        torch.manual_seed(SEEDS[mb])
        lane.args[mb], lane.outputs[mb] = args, lane.stage(*args)
        lane.roots[mb] = loss_of(lane.outputs[mb], TARGETS[number, mb]()) if last else lane.outputs[mb]
        seen += [(f"output {i} of {token}", copy(o)) for i, o in enumerate(leaves(lane.outputs[mb]))]
    elif kind in {"B", "I"}:
        key: Any = (number, mb, "misuse") if misuse else (number, mb)
        handed_back = CHAIN and not last and number < len(STAGES) - 1
        grads = None if last else lanes[number + 1].returned.pop(mb) if handed_back else OUTPUT_GRADS[key]()
        lane.grads[mb] = grads
        call = lane.backend.backward if kind == "B" else lane.backend.backward_input
        returned = call(mb, lane.args[mb], lane.roots[mb], grads)
        lane.returned[mb] = tuple(g.detach() if isinstance(g, Tensor) else g for g in returned)
        seen += [(f"the gradient of input {i} from {token}", copy(g)) for i, g in enumerate(returned)]
        if "layout" in WATCHED:
            seen += [
                (f"layout of input gradient {i}", g.is_contiguous()) for i, g in enumerate(returned) if g is not None
            ]
        if "later" in WATCHED:
            kept += [(f"input gradient {i} of {token}", g, g.clone()) for i, g in enumerate(returned) if g is not None]
    elif kind == "W":
        result = lane.backend.backward_weight(mb)
        if "result" in WATCHED and result is not None:
            names = [name for name, _ in lane.stage.named_parameters()]
            seen += [(f"what {token} returns for {n}", copy(g)) for n, g in zip(names, result, strict=True)]
    else:
        around(lane, kind, mb)


def around(lane: Lane, kind: str, number: int) -> None:
    """Do what happens around a stage."""
    if kind.startswith("zero"):
        lane.stage.zero_grad(set_to_none=kind == "zero_none")
    elif kind == "drop":
        for held in (lane.args, lane.outputs, lane.roots, lane.grads, lane.returned):
            held.pop(number, None)
    elif kind == "overwrite":
        for grad in lane.returned.pop(number):
            if grad is not None:
                grad.fill_(7)
    elif kind in {"freeze", "unfreeze"}:
        list(lane.stage.parameters())[number].requires_grad_(kind == "unfreeze")
    elif kind == "hook":
        lane.hook()
    elif kind == "unhook":
        while lane.handles:
            lane.handles.pop().remove()


def after(lane: Lane, token: str) -> Seen:
    """Return what is there after an action: parameter gradients, and what else the check watches."""
    named = dict(lane.stage.named_parameters())
    seen: Seen = [(f"the gradient of {name} after {token}", copy(p.grad)) for name, p in named.items()]
    if "hooks" in WATCHED or "module hooks" in WATCHED:
        seen.append((f"the hooks called in {token}", " ".join(sorted(lane.calls))))
        lane.calls.clear()
    if "flags" in WATCHED:
        tensors = {f"argument {i} of micro-batch {mb}": a for mb, args in lane.args.items() for i, a in enumerate(args)}
        flagged = {**named, **tensors}
        seen += [
            (f"requires_grad of {n} after {token}", t.requires_grad)
            for n, t in flagged.items()
            if isinstance(t, Tensor)
        ]
    if "output gradients" in WATCHED:
        seen += [
            (f"output gradient {i} of micro-batch {mb} after {token}", copy(g))
            for mb, grads in lane.grads.items()
            for i, g in enumerate(leaves(grads))
        ]
    if "sharing" in WATCHED:
        seen.append((f"what shares storage after {token}", sharing(lane, named)))
    return seen


def sharing(lane: Lane, named: dict[str, Any]) -> str:
    """Return which gradients share storage with each other, with an output gradient, an argument or a parameter."""
    tensors = [(f".grad of {name}", p.grad) for name, p in named.items()]
    for mb in lane.args:
        tensors += [(f"input gradient {i} of micro-batch {mb}", g) for i, g in enumerate(lane.returned.get(mb, ()))]
        tensors += [(f"output gradient {i} of micro-batch {mb}", g) for i, g in enumerate(leaves(lane.grads.get(mb)))]
    places: dict[int, list[str]] = {}
    for name, tensor in tensors:
        if isinstance(tensor, Tensor) and tensor.layout == torch.strided and tensor.numel():
            places.setdefault(tensor.untyped_storage().data_ptr(), []).append(name)
    return "; ".join(" and ".join(names) for names in places.values() if len(names) > 1)


def copy(value: Any) -> Any:
    """Return a tensor's values as they are now."""
    return value.detach().to_dense().cpu().clone() if isinstance(value, Tensor) else value


def differs(got: Any, expected: Any) -> bool:
    """Tell whether two things seen are not the same; numbers may differ by rounding."""
    if not (isinstance(got, Tensor) and isinstance(expected, Tensor)):
        return got is not expected and (isinstance(got, Tensor) or isinstance(expected, Tensor) or got != expected)
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return True
    if not (got.is_floating_point() or got.is_complex()):
        return not torch.equal(got, expected)
    finite = expected[torch.isfinite(expected)]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    return not torch.allclose(got, expected, rtol=0.0, atol=TOLERANCE * scale, equal_nan=True)


def main() -> int:
    """Compare an implementation with plain autograd; return 1 where it is wrong."""
    where, _, attribute = (sys.argv[1] if len(sys.argv) > 1 else IMPLEMENTATION).partition(":")
    functions = importlib.import_module(where)
    functions = getattr(functions, attribute) if attribute else functions
    ballast: list[object] = []
    for count in range(REPEATS):
        ballast += [object() for _ in range(37 * count % 101)]  # another address for what is made next
        plain, tried = run(None), run(functions)
        wrong = [
            (p, expected, g)
            for (p, expected), (place, g) in zip(plain, tried, strict=False)
            if place == p and differs(g, expected)
        ]
        if tried and tried[-1][0] not in dict(plain):
            wrong.append((tried[-1][0], "no error", tried[-1][1]))
        for place, expected, got in wrong[:5]:
            print(f"{place}:\n  expected {expected}\n  got      {got}")  # noqa: T201 (this is what a script is for)
        if wrong:
            print(f"WRONG: {len(wrong)} of {len(plain)} things seen differ from plain autograd")  # noqa: T201 (as above)
            return 1
    print(f"right: {len(plain)} things seen are those of plain autograd")  # noqa: T201 (as above)
    return 0


if __name__ == "__main__":
    sys.exit(main())
