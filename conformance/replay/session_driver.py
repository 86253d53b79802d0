"""The functions of a short script of an adapter: plain autograd as a session, one run of the program, one comparison.

Like :mod:`gradconform.replay.standalone`, this is code that is copied into a script, without the branches that its
trial rules out. A script defines PROGRAM, STAGES, ARGS, SPECS, GRADS and TARGETS itself (by stage and micro-batch).
"""

from __future__ import annotations

import copy
import gc
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gradconform.drive.stage_changes import (
    change_in_place,
    into_bucket,
    rebind_parameters,
    replace_data,
    restride_grads,
    write_over,
)
from gradconform.reference.autograd import leaf_of
from gradconform.trees import as_tuple, flattened

if TYPE_CHECKING:
    from gradconform.adapter import StageSpec

    CHAIN = LOSS = FIRST_UNREAD = NOT_ALWAYS_DUE = SOME_ROOTS = SOME_ARGS = SOME_WEIGHTS = False
    NESTED = RECEIVES = SEVERAL = SPLIT = SAME_ARGS = False
    PROGRAM = ""
    LOSS_SCALE = TOLERANCE = 0.0
    STAGES: list[nn.Module]
    ARGS, GRADS, TARGETS = [[]], [[]], [[]]  # type: ignore[var-annotated] # a script defines them
    SPECS: list[StageSpec]
    DUE: set[int]
    AROUND: dict[str, Callable[[], Any]]


def needs_grad(value: Any) -> Any:
    return getattr(value, "requires_grad", False)


class Plain:
    """Plain autograd: I takes the gradients of the arguments, W those of the parameters, and B both."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        self.stage, self.spec, self.flying = stage, spec, {}  # type: ignore[var-annotated] # a script has no types

    def forward(self, mb: int, args: Any, target: Any = None) -> Any:
        outputs = self.stage(*args)
        self.flying[mb] = args, flattened(outputs) if NESTED else list(as_tuple(outputs)) if SEVERAL else [outputs]
        if LOSS and self.spec.loss_fn:
            self.flying[mb] = args, [self.spec.loss_fn(outputs, target) * LOSS_SCALE]
        return outputs

    def backward_input(self, mb: int, grads: Any) -> Any:
        args, roots = self.flying[mb]
        if RECEIVES:
            grads = copy.deepcopy(grads)
        if NESTED:
            grads = flattened(grads)
        if SOME_ROOTS:
            grads = grads or [None]
            kept = [n for n, root in enumerate(roots) if needs_grad(root) and (not root.dim() or grads[n] is not None)]
            roots, grads = [roots[n] for n in kept], [grads[n] for n in kept]
        self.flying[mb] = roots, grads
        if not SOME_ARGS:
            return torch.autograd.grad(roots, args, grads, retain_graph=True, allow_unused=True)
        sought = [arg for arg in args if needs_grad(arg)]
        found = iter(torch.autograd.grad(roots, sought, grads, retain_graph=True, allow_unused=True) if sought else ())
        return tuple(next(found) if needs_grad(arg) else None for arg in args)

    def backward_weight(self, mb: int) -> None:
        roots, grads = self.flying.pop(mb)
        sought = list(filter(needs_grad, self.stage.parameters())) if SOME_WEIGHTS else list(self.stage.parameters())
        if not SOME_ROOTS or roots:
            torch.autograd.backward(roots, grads, inputs=sought)

    def backward(self, mb: int, grads: Any) -> Any:
        if not SPLIT:
            args, roots = self.flying.pop(mb)
            torch.autograd.backward(roots, flattened(grads) if NESTED else grads)
            return [arg.grad if needs_grad(arg) else None for arg in args] if SOME_ARGS else [arg.grad for arg in args]
        found = self.backward_input(mb, grads)
        self.backward_weight(mb)
        return found


#: The words of a program that change a stage: what they do, given the number behind the word.
CHANGES: dict[str, Callable[[nn.Module, int], Any]] = {
    "zero_none": lambda stage, _: stage.zero_grad(set_to_none=True),
    "zero_fill": lambda stage, _: stage.zero_grad(set_to_none=False),
    "freeze": lambda stage, number: [*stage.parameters()][number].requires_grad_(False),  # noqa: FBT003 (torch's own)
    "unfreeze": lambda stage, number: [*stage.parameters()][number].requires_grad_(True),  # noqa: FBT003 (torch's own)
    "step": lambda stage, _: change_in_place(stage),
    "replace": lambda stage, _: replace_data(stage),
    "rebind": lambda stage, _: rebind_parameters(stage),
    "restride": lambda stage, _: restride_grads(stage),
    "bucket": lambda stage, _: into_bucket(stage),
    "collect": lambda *_: gc.collect(1),
}


def run(opened: Callable[..., Any]) -> Iterator[tuple[str, dict[str, Tensor | None]]]:
    """Yield the gradients after each action of the program, by name; plain autograd has nothing to finish."""
    stages = copy.deepcopy(STAGES)
    sessions = [opened(stage, SPECS[lane]) for lane, stage in enumerate(stages)]
    args: dict[tuple[int, int], Any]
    args, outputs, grads, returned = {}, {}, {}, {}  # type: ignore[var-annotated] # a script has no types
    for place, token in enumerate(PROGRAM.split()):
        lane, kind, mb = re.fullmatch(r"(\d*)([A-Za-z_]+)(\d*)", token).groups()  # type: ignore[union-attr]  # the kit wrote it
        lane, mb, found = int(lane or 0), int(mb or 0), {}
        session, stage, key = sessions[lane], stages[lane], (lane, mb)
        last = LOSS and (not CHAIN or lane == len(STAGES) - 1)
        with AROUND.get(kind, nullcontext)():
            if kind == "F":
                torch.manual_seed(mb)
                if CHAIN and lane:
                    args[key] = tuple(map(leaf_of, as_tuple(outputs[lane - 1, mb])))
                else:
                    args[key] = tuple(copy.deepcopy(ARGS[lane][mb]))
                if SAME_ARGS:
                    args[key] = args[lane, 0] = args.get((lane, 0), args[key])
                outputs[key] = session.forward(mb, args[key], TARGETS[lane][mb] if last else None)
            elif kind in {"B", "I"}:
                grads[key] = copy.deepcopy(GRADS[lane][mb])
                if CHAIN and lane < len(STAGES) - 1:
                    grads[key] = returned[lane + 1, mb]
                if last:
                    grads[key] = None
                returned[key] = (session.backward if kind == "B" else session.backward_input)(mb, grads[key])
                if not (FIRST_UNREAD and lane == 0):
                    found = {f"the gradient of input {slot}": grad for slot, grad in enumerate(returned[key])}
            elif kind == "W":
                session.backward_weight(mb)
            elif kind == "finish" and opened is not Plain:
                session.finish()
            elif kind in {"close", "reopen"}:
                if opened is not Plain:
                    session.close()
                if kind == "reopen":
                    sessions[lane] = session = opened(stage, SPECS[lane])
            elif kind == "drop":
                args[key] = outputs[key] = grads[key] = returned[key] = None
            elif kind == "overwrite":
                for grad in filter(torch.is_tensor, returned.pop(key)):
                    write_over(grad)
            elif kind == "receive":
                for grad in filter(torch.is_tensor, flattened(grads[key])):
                    write_over(grad)
            elif kind in CHANGES:
                CHANGES[kind](stage, mb)
        if not NOT_ALWAYS_DUE or place in DUE:
            stored = {name: parameter.grad for name, parameter in stage.named_parameters()}
            stored = stored if opened is Plain else session.param_grads()
            found |= {f"the gradient of {name}": grad for name, grad in stored.items()}
        yield token, {name: grad if grad is None else grad.detach().clone() for name, grad in found.items()}


def differs(expected: Any, got: Any) -> str:
    """Return where two gradients differ most, in words; nothing if they are equal."""
    shapes = [None if grad is None else list(grad.shape) for grad in (expected, got)]
    if expected is None or shapes[0] != shapes[1]:
        return "" if expected is got else f"expected a gradient of shape {shapes[0]}, got {shapes[1]}"
    apart = (expected - got.to(expected.dtype)).abs().to_dense()
    if not apart.numel() or bool(apart.max() <= TOLERANCE * expected.abs().max()):
        return ""
    index = tuple(int(place) for place in torch.unravel_index(apart.argmax(), apart.shape))
    return f"at {list(index)} expected {expected[index].item()}, got {got[index].item()}"
