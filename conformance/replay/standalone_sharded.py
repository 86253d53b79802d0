"""The main program of a sharded stage's script: one row on this rank and on the whole stage, compared.

A script defines the names that it reads: ``stage`` (the user's object), SIZES (the mesh), PROGRAM (the actions of a
step), DEVICE, DTYPE, SEED and TOLERANCE (the largest error as a part of a tensor's largest number). The names below are
known when it is written: see gradconform.replay.sharded_script. tests/sharded/test_replay_sharded.py runs scripts.
"""

from __future__ import annotations

import copy
import gc
import math
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    stage: Any
    SIZES: dict[str, int]
    PROGRAM: str
    DEVICE = ""
    DTYPE: torch.dtype
    SEED = 0
    TOLERANCE = 0.0
    CHECKPOINT = CLIPS = EXPANDED = FINISHES = FIRST_IS_NONE = FROZEN = STANDING = ZEROS = False
    FIRST_FROZEN = False

RATE, MOST_NORM, STEPS = 0.01, 1.0, 3


def said(name: Any, default: Any = None) -> Any:
    found = getattr(stage, name, default)
    return found() if hasattr(found, "__func__") else found


def placements(given: Any) -> Any:
    if isinstance(given, Mapping):
        return {name: given.get(name, Replicate()) for name in SIZES}
    return given if not hasattr(given, "is_shard") else dict.fromkeys(SIZES, given)


def of_dtensor(tensor: Any) -> Any:
    names = tensor.device_mesh.mesh_dim_names or tuple(SIZES)[-tensor.device_mesh.ndim :]
    return {**dict.fromkeys(SIZES, Replicate()), **dict(zip(names, tensor.placements))}


def part(whole: Any, given: Any, mesh: Any) -> Any:
    if whole is None:
        return None
    here = dict(zip(SIZES, mesh.get_coordinate() or ()))
    if not isinstance(given, dict):
        return given(whole, here, SIZES)
    for name, size in SIZES.items():
        if isinstance(given[name], Shard):
            dim = given[name].dim % whole.dim()
            pieces = torch.chunk(whole, size, dim)
            whole = pieces[here[name]] if here[name] < len(pieces) else whole.narrow(dim, 0, 0)
    return whole


def local(tensor: Any) -> Any:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def flat(outputs: Any) -> list[Any]:
    if isinstance(outputs, dict):
        outputs = tuple(outputs.values())
    return [leaf for one in outputs for leaf in flat(one)] if isinstance(outputs, (tuple, list)) else [outputs]


def seeded(*parts: Any) -> Any:
    return torch.Generator().manual_seed(zlib.crc32("/".join(map(str, parts)).encode()))


def batch(whole: Any, step: Any, mb: Any) -> Any:
    given = stage.args(seeded("sharded", SEED, step, mb))
    given = given if isinstance(given, tuple) else (given,)
    marked = any(isinstance(one, torch.Tensor) and one.requires_grad for one in given)
    floating = [isinstance(one, torch.Tensor) and one.is_floating_point() for one in given]
    needs = [is_one and (one.requires_grad or not marked) for one, is_one in zip(given, floating)]
    args = [one.detach().to(DTYPE) if is_one else one for one, is_one in zip(given, floating)]
    with torch.no_grad():
        outputs = [one for one in flat(whole(*args)) if isinstance(one, torch.Tensor)]
    draws = seeded("sharded-grads", SEED, step, mb)
    grads: list[Any] = []
    for place, output in enumerate(outputs):
        shape = () if EXPANDED else output.shape
        skipped = not output.is_floating_point() or (FIRST_IS_NONE and place == 0)
        grads.append(None if skipped else torch.randn(shape, generator=draws).to(output.dtype).expand(output.shape))
    return args, needs, grads


def step(module: Any, batches: Any, own_args: Any, own_grads: Any, after: Any) -> Any:
    """Run one step of the program; return the outputs and the gradients of the arguments by micro-batch."""
    args: dict[int, Any] = {}
    outputs: dict[int, Any] = {}
    starts: dict[int, Any] = {}
    inputs: dict[int, Any] = {}
    for action in PROGRAM.split():
        letter, mb = action[0], int(action[1:])
        if letter == "F":
            whole_args, needs, _ = batches[mb]
            args[mb] = [
                own_args(i, one).requires_grad_(needs[i]) if isinstance(one, torch.Tensor) else one
                for i, one in enumerate(whole_args)
            ]
            outputs[mb] = [one for one in flat(module(*args[mb])) if isinstance(one, torch.Tensor)]
        elif letter in "BI":
            pairs = [
                (out, own_grads(i, out, grad))
                for i, (out, grad) in enumerate(zip(outputs[mb], batches[mb][2]))
                if grad is not None and out.requires_grad
            ]
            starts[mb] = [out for out, _ in pairs], [grad for _, grad in pairs]
            needed = [one for one in args[mb] if isinstance(one, torch.Tensor) and one.requires_grad]
            if letter == "B" and pairs:
                torch.autograd.backward(*starts[mb])
            elif pairs and needed:
                roots, given = starts[mb]
                torch.autograd.backward(roots, given, inputs=needed, retain_graph=True)
            inputs[mb] = [one.grad if isinstance(one, torch.Tensor) else None for one in args[mb]]
        elif letter == "W":
            trained = [one for one in module.parameters() if one.requires_grad]
            roots, given = starts[mb]
            if roots and trained:
                torch.autograd.backward(roots, given, inputs=trained)
    after(module)
    return outputs, inputs


def update(module: Any, norm: Any) -> None:
    factor = min(1.0, MOST_NORM / (norm + 1e-6)) if CLIPS else 1.0
    with torch.no_grad():
        for one in module.parameters():
            if one.grad is not None:
                local(one).sub_(local(one.grad) * (RATE * factor))
                one.grad = None


def standing(shape: Any, name: Any) -> Any:
    if ZEROS:
        return torch.zeros(shape, dtype=DTYPE)
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(name.encode()))).to(DTYPE)


def differences(mesh: Any) -> list[str]:
    """Return what differs on this rank from the whole stage."""
    torch.manual_seed(SEED)
    whole = stage.whole().to(DTYPE)
    torch.manual_seed(SEED)
    own = stage.sharded(mesh).to(DEVICE, DTYPE)
    named = dict(whole.named_parameters(remove_duplicate=False))
    layouts: dict[str, Any] = {}
    whole_name: dict[str, str] = {}
    first: dict[int, str] = {}
    renamed = getattr(stage, "whole_names", {})
    for name, one in whole.named_parameters(remove_duplicate=False):
        first.setdefault(id(one), name)
    order = [name for name, _ in whole.named_parameters()]
    frozen = set(order[:1] if FIRST_FROZEN else order[1:]) if FROZEN else set()
    for name, one in own.named_parameters():
        here = dict(zip(SIZES, mesh.get_coordinate() or ()))
        whole_name[name] = renamed(name, here) if callable(renamed) else renamed.get(name, name)
        layouts[name] = of_dtensor(one) if isinstance(one, DTensor) else placements(said("placements", {})[name])
        source = named[whole_name[name]]
        with torch.no_grad():
            local(one).copy_(part(source.detach(), layouts[name], mesh))
        one.requires_grad_(one.requires_grad and first[id(source)] not in frozen)
        if STANDING and one.requires_grad:
            grad = part(standing(source.shape, first[id(source)]), layouts[name], mesh).clone().to(DEVICE)
            one.grad = DTensor.from_local(grad, one.device_mesh, one.placements) if isinstance(one, DTensor) else grad
    for name, one in whole.named_parameters():
        one.requires_grad_(one.requires_grad and name not in frozen)
        if STANDING and one.requires_grad:
            one.grad = standing(one.shape, name)
    batches = [
        [batch(copy.deepcopy(whole), number, mb) for mb in range(1 + max(int(one[1:]) for one in PROGRAM.split()))]
        for number in range(STEPS)
    ]
    wide = copy.deepcopy(whole).double()
    for one, other in zip(wide.parameters(), whole.parameters()):
        one.grad = None if other.grad is None else other.grad.double()
    if CHECKPOINT:
        inner = own.forward
        own.forward = lambda *args: checkpoint(inner, *args, use_reentrant=False)
    args_by = said("arg_placements") or [Replicate()] * len(batches[0][0][0])
    grads_by = said("arg_grad_placements") or args_by
    outputs_by, output_grads_by = said("output_placements"), said("output_grad_placements")
    wrong: list[str] = []

    def output_layout(place: Any, out: Any) -> Any:
        if isinstance(out, DTensor):
            return of_dtensor(out)
        return placements(Replicate() if outputs_by is None else outputs_by[place])

    def own_grad(place: Any, out: Any, grad: Any) -> Any:
        layout = output_layout(place, out) if output_grads_by is None else placements(output_grads_by[place])
        if isinstance(layout, dict):
            layout = {name: Replicate() if isinstance(one, Partial) else one for name, one in layout.items()}
        found = part(grad, layout, mesh).to(DEVICE)
        if not isinstance(out, DTensor):
            return found
        whole_of = [Replicate() if isinstance(one, Partial) else one for one in out.placements]
        return DTensor.from_local(found, out.device_mesh, whole_of)

    def compare(name: Any, got: Any, right: Any, layout: Any) -> None:
        if isinstance(layout, dict) and got is not None:
            for dim, one in layout.items():
                if isinstance(one, Partial):
                    got = got.detach().clone()
                    dist.all_reduce(got, group=mesh.get_group(dim))
        right = None if right is None else right.detach()
        expected = part(right, layout, mesh)
        if got is None or expected is None:
            if (got is None) != (expected is None) and (got is None or bool(local(got).any())):
                wrong.append(f"{name}: expected {'None' if expected is None else 'a tensor'}, got the other")
            return
        error = (local(got).detach().cpu().double() - expected.double()).abs()
        allowed = TOLERANCE * float(right.double().abs().max()) if right.numel() else 0.0
        if error.numel() and not float(error.max()) <= allowed:
            place = tuple(int(i) for i in (error == error.max()).nonzero()[0])
            seen = f"expected {float(expected[place]):.9g}, got {float(local(got)[place]):.9g}"
            wrong.append(f"{name}: at {list(place)} {seen}; error {float(error.max()):.3g}, allowed {allowed:.3g}")

    for number in range(STEPS):
        plain, plain_inputs = step(
            wide,
            batches[number],
            lambda _, one: one.clone().double() if one.is_floating_point() else one,
            lambda _, out, grad: grad.to(out.dtype),
            lambda _: None,
        )
        seen, inputs = step(
            own, batches[number],
            lambda i, one: part(one, placements(args_by[i]), mesh).detach().clone().to(DEVICE),
            own_grad, stage.finish if FINISHES else lambda _: None,
        )  # fmt: skip
        right = math.sqrt(sum(float(one.grad.square().sum()) for one in wide.parameters() if one.grad is not None))
        norm = float(local(stage.grad_norm(own))) if CLIPS else right
        if number == 0:
            for mb, outputs in seen.items():
                for place, out in enumerate(outputs):
                    compare(f"output {place} of F{mb}", local(out), plain[mb][place], output_layout(place, out))
                for slot, grad in enumerate(inputs[mb]):
                    if isinstance(batches[0][mb][0][slot], torch.Tensor):
                        layout = placements(grads_by[slot])
                        compare(f"gradient of input {slot} of F{mb}", grad, plain_inputs[mb][slot], layout)
            wide_named = dict(wide.named_parameters(remove_duplicate=False))
            for name, one in own.named_parameters():
                compare(f"gradient of {name}", one.grad, wide_named[whole_name[name]].grad, layouts[name])
            if abs(norm - right) > TOLERANCE * right:
                wrong.append(f"norm: expected {right:.9g}, got {norm:.9g}")
        update(wide, right)
        update(own, norm)
    wide_named = dict(wide.named_parameters(remove_duplicate=False))
    for name, one in own.named_parameters():
        compare(f"{name} after {STEPS} steps", one.detach(), wide_named[whole_name[name]].detach(), layouts[name])
    return wrong


def main() -> int:
    dist.init_process_group("gloo" if DEVICE == "cpu" else None)
    torch.set_num_threads(1)
    rank = dist.get_rank()
    wrong = differences(init_device_mesh(DEVICE, tuple(SIZES.values()), mesh_dim_names=tuple(SIZES)))
    for line in wrong or ["equal to the whole stage"]:
        print(f"rank {rank}: {line}", flush=True)
    gc.collect()  # what outlives its group may abort the process
    dist.barrier()
    dist.destroy_process_group()
    return int(bool(wrong))
