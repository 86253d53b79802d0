"""The main program of a sharded stage's script: one row on this rank and on the whole stage, compared.

A script defines the names that it reads: ``stage`` (the user's object), MESH with SIZES and HERE (this rank's place),
PROGRAM (the actions of a step), DEVICE, DTYPE, SEED and TOLERANCE (the largest error as a part of a tensor's largest
number). The others are known when it is written, and stand in no script: see gradconform.replay.sharded_script.
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
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    stage: Any
    MESH: Any
    HERE: dict[str, int]
    SIZES: dict[str, int]
    PROGRAM: str
    DEVICE = WHAT = ""
    DTYPE: torch.dtype
    SEED = STEPS = MICROBATCHES = 0
    TOLERANCE = 0.0
    CHECKPOINT = CLIPS = EXPANDED = FINISHES = FIRST_IS_NONE = FROZEN = STANDING = ZEROS = FIRST_FROZEN = SPLIT = False
    DTENSORS = PLACED_ARGS = PLACED_GRADS = PLACED_OUTPUTS = PLACED_OUTPUT_GRADS = RENAMED = SEVERAL_STEPS = False
    ONE_OUTPUT = False
    OUTPUTS = INPUTS = GRADIENTS = COPIES = NORM = BUFFERS = PARAMETERS = False

wrong: list[str] = []


def said(name: Any) -> Any:
    found = getattr(stage, name)
    return found() if hasattr(found, "__func__") else found


def placements_of(tensor: Any) -> Any:
    names = tensor.device_mesh.mesh_dim_names
    if names is None or len(names) == len(SIZES):  # the same dimensions may have other names
        names = tuple(SIZES)[-tensor.device_mesh.ndim :]
    return {**dict.fromkeys(SIZES, Replicate()), **dict(zip(names, tensor.placements))}


def part(whole: Any, given: Any) -> Any:
    if callable(given):
        return given(whole, HERE, SIZES)
    for name, size in SIZES.items():
        placement: Any = given.get(name) if isinstance(given, Mapping) else given
        if isinstance(placement, Shard):
            dim = placement.dim % whole.dim()
            pieces = torch.chunk(whole, size, dim)
            whole = pieces[HERE[name]] if HERE[name] < len(pieces) else whole.narrow(dim, 0, 0)
        elif DTENSORS and hasattr(placement, "split_factor"):  # a strided shard of several blocks
            blocks = whole.chunk(placement.split_factor, placement.dim)
            whole = torch.cat([block.chunk(size, placement.dim)[HERE[name]] for block in blocks], placement.dim)
    return whole


def local(tensor: Any) -> Any:
    return tensor.to_local() if DTENSORS and isinstance(tensor, DTensor) else tensor


def as_dtensor(own: Any, like: Any) -> Any:
    whole = [Replicate() if isinstance(one, Partial) else one for one in like.placements]
    return DTensor.from_local(own, like.device_mesh, whole, run_check=False)


def tensors_in(outputs: Any) -> list[Any]:
    if ONE_OUTPUT:
        return [outputs]
    if isinstance(outputs, dict):
        outputs = tuple(outputs.values())
    if isinstance(outputs, (tuple, list)):
        return [leaf for one in outputs for leaf in tensors_in(one)]
    return [outputs] if isinstance(outputs, torch.Tensor) else []


def seeded(kind: Any, step: Any, mb: Any) -> Any:
    return torch.Generator().manual_seed(zlib.crc32(f"{kind}/{SEED}/{step}/{mb}".encode()))


def batch(whole: Any, step: Any, mb: Any) -> Any:
    """Return the whole arguments of a micro-batch and the gradients of its outputs."""
    args = stage.args(seeded("sharded", step, mb))
    args = list(args) if isinstance(args, tuple) else [args]
    marked = any(isinstance(one, torch.Tensor) and one.requires_grad for one in args)
    for place, one in enumerate(args):
        if isinstance(one, torch.Tensor) and one.is_floating_point():
            args[place] = one.detach().to(DTYPE, copy=True).requires_grad_(one.requires_grad or not marked)
    outputs = tensors_in(copy.deepcopy(whole)(*args))
    generator = seeded("sharded-grads", step, mb)
    grads: list[Any] = [None] * len(outputs)
    for place, output in enumerate(outputs):
        if output.is_floating_point() and not (FIRST_IS_NONE and place == 0):
            drawn_grad = torch.randn(() if EXPANDED else output.shape, generator=generator)
            grads[place] = drawn_grad.to(output.dtype).expand(output.shape)
    return args, grads


def own_arg(place: Any, whole: Any) -> Any:
    if not isinstance(whole, torch.Tensor):
        return whole
    layout = said("arg_placements")[place] if PLACED_ARGS else Replicate()
    return part(whole.detach(), layout).clone().to(DEVICE).requires_grad_(whole.requires_grad)


def wide(whole: Any) -> Any:
    if not isinstance(whole, torch.Tensor):
        return whole
    dtype = torch.float64 if whole.is_floating_point() else whole.dtype
    return whole.detach().to(dtype, copy=True).requires_grad_(whole.requires_grad)


def step(module: Any, batches: Any, own: Any) -> Any:
    """Run one step of the program; return the outputs and the gradients of the arguments by micro-batch."""
    args: dict[int, Any] = {}
    outputs: dict[int, Any] = {}
    for action in PROGRAM.split():
        letter, mb = action[0], int(action[1:])
        if letter == "F":
            args[mb] = [own_arg(i, one) if own else wide(one) for i, one in enumerate(batches[mb][0])]
            outputs[mb] = tensors_in(module(*args[mb]))
            continue
        grads = [own_grad(i, outputs[mb][i], one) if own else one for i, one in enumerate(batches[mb][1])]
        pairs = [
            (out, grad if own else grad.to(out.dtype))
            for out, grad in zip(outputs[mb], grads)
            if grad is not None and out.requires_grad
        ]
        roots, given = [out for out, _ in pairs], [grad for _, grad in pairs]
        if not SPLIT:
            torch.autograd.backward(roots, given)
        else:
            some = args[mb] if letter == "I" else module.parameters()
            only = [one for one in some if isinstance(one, torch.Tensor) and one.requires_grad]
            if pairs and only:
                torch.autograd.backward(roots, given, inputs=only, retain_graph=letter == "I")
    return outputs, {mb: [getattr(one, "grad", None) for one in some] for mb, some in args.items()}


def grad_layout(place: Any) -> Any:
    if PLACED_GRADS:
        return said("arg_grad_placements")[place]
    return said("arg_placements")[place] if PLACED_ARGS else Replicate()


def output_layout(place: Any, out: Any) -> Any:
    if DTENSORS and isinstance(out, DTensor):
        return placements_of(out)
    return said("output_placements")[place] if PLACED_OUTPUTS else Replicate()


def own_grad(place: Any, out: Any, grad: Any) -> Any:
    if grad is None:
        return None
    layout = output_layout(place, out)
    if PLACED_OUTPUT_GRADS:
        layout = said("output_grad_placements")[place]
    found = part(grad, layout).clone().to(DEVICE)
    return as_dtensor(found, out) if DTENSORS and isinstance(out, DTensor) else found


def drawn(shape: Any, name: Any) -> Any:
    if STANDING and ZEROS:
        return torch.zeros(shape, dtype=DTYPE)
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(name.encode()))).to(DTYPE)


def set_grad(parameter: Any, whole: Any, layout: Any) -> None:
    found = part(whole, layout).clone().to(DEVICE)
    parameter.grad = as_dtensor(found, parameter) if DTENSORS and isinstance(parameter, DTensor) else found


def compare(name: Any, got: Any, right: Any, layout: Any) -> None:
    """Note the largest error of this rank's part of a tensor; a partial tensor is summed over the ranks."""
    if (PLACED_OUTPUTS or PLACED_GRADS or DTENSORS) and got is not None and not callable(layout):
        for dim in SIZES:
            one = layout.get(dim) if isinstance(layout, Mapping) else layout
            if isinstance(one, Partial):
                got = got.detach().clone()
                dist.all_reduce(got, group=MESH.get_group(dim))
                got = got / (SIZES[dim] if one.reduce_op == "avg" else 1)
    if got is None or right is None:
        if right is not None or (got is not None and bool(local(got).any())):
            wrong.append(f"{name}: expected {'None' if right is None else 'a tensor'}, got the other")
        return
    got, right = local(got).detach().cpu().double(), right.detach().double()
    expected = part(right, layout)
    error = (got - expected).abs()
    allowed = TOLERANCE * float(right.abs().max()) if right.numel() else 0.0
    if error.numel() and not float(error.max()) <= allowed:
        place = tuple(int(i) for i in (error == error.max()).nonzero()[0])
        seen = f"expected {float(expected[place]):.9g}, got {float(got[place]):.9g}"
        wrong.append(f"{name}: at {list(place)} {seen}; error {float(error.max()):.3g}, allowed {allowed:.3g}")


def compare_norm(name: Any, got: Any, right: Any) -> None:
    if not abs(got - right) <= TOLERANCE * right:
        wrong.append(f"{name}: expected {right:.9g}, got {got:.9g}")


def compare_copies(what: Any, named: Any, right: Any, of: Any) -> None:
    """Note the copies of a parameter that differ in a bit between this rank and another."""
    everyone: list[Any] = [None] * dist.get_world_size()
    own = {}
    for name, one in named.items():
        source, layout = of[name]
        shape = right.get_parameter(source).shape
        positions = torch.arange(shape.numel()).reshape(shape)
        own[name] = source, part(positions, layout), None if one is None else local(one).detach().cpu()
    dist.all_gather_object(everyone, own)
    for rank, others in enumerate(everyone):
        for name, (source, positions, one) in own.items():
            for other_source, places, other in others.values():
                same = one is other if one is None or other is None else torch.equal(one, other)
                if source == other_source and torch.equal(positions, places) and not same:
                    wrong.append(f"{what} {name}: this copy and that on rank {rank} differ")


def whole_name(name: Any) -> Any:
    names = stage.whole_names
    return names(name, HERE) if callable(names) else names.get(name, name)


def norm_of(module: Any) -> float:
    return math.sqrt(sum(float(one.grad.square().sum()) for one in module.parameters() if one.grad is not None))


def placed_as(grad: Any, parameter: Any) -> Any:
    if isinstance(grad, DTensor) and grad.placements != parameter.placements:
        return grad.redistribute(placements=parameter.placements)
    return grad


def update(module: Any, norm: Any) -> None:
    factor = 0.01 * min(1.0, 1.0 / (norm + 1e-6)) if CLIPS else 0.01
    with torch.no_grad():
        for one in module.parameters():
            if one.grad is not None:
                local(one).sub_(local(placed_as(one.grad, one) if DTENSORS else one.grad) * factor)
                one.grad = None


def first_name(whole: Any, source: Any) -> Any:
    """Return the first name of a parameter in the whole stage, where it may have several."""
    return next(name for name, one in whole.named_parameters() if one is whole.get_parameter(source))


def filled(own: Any, whole: Any) -> dict[str, Any]:
    """Give this rank its parts of the parameters; return by name the name in the whole stage and the layout."""
    of: dict[str, Any] = {}
    if FROZEN:
        for one in list(whole.parameters())[0 if FIRST_FROZEN else 1 : 1 if FIRST_FROZEN else None]:
            one.requires_grad = False
    for name, one in own.named_parameters():
        source = whole_name(name) if RENAMED else name
        layout = placements_of(one) if DTENSORS and isinstance(one, DTensor) else said("placements")[name]
        of[name] = source, layout
        with torch.no_grad():
            local(one).copy_(part(whole.get_parameter(source).detach(), layout))
        if FROZEN:
            one.requires_grad_(one.requires_grad and whole.get_parameter(source).requires_grad)
        if STANDING and one.requires_grad:
            set_grad(one, drawn(whole.get_parameter(source).shape, first_name(whole, source)), layout)
    return of


def compare_tensors(seen: Any, plain: Any, batches: Any) -> None:
    """Compare outputs and gradients of arguments, which each of the first two has by micro-batch."""
    if OUTPUTS:
        for mb, some in seen[0].items():
            for place, out in enumerate(some):
                compare(f"output {place} of F{mb}", local(out), plain[0][mb][place], output_layout(place, out))
    if INPUTS:
        for mb, some in seen[1].items():
            for slot, grad in enumerate(some):
                if isinstance(batches[mb][0][slot], torch.Tensor):
                    compare(f"gradient of input {slot} of F{mb}", grad, plain[1][mb][slot], grad_layout(slot))


def compare_stages(own: Any, right: Any, of: Any) -> None:
    """Compare what this rank's stage has after a step."""
    if GRADIENTS or COPIES:
        grads = {name: placed_as(one.grad, one) if DTENSORS else one.grad for name, one in own.named_parameters()}
    if GRADIENTS:
        for name, grad in grads.items():
            compare(f"gradient of {name}", grad, right.get_parameter(of[name][0]).grad, of[name][1])
    if BUFFERS:
        buffers = dict(right.named_buffers())
        for name, one in own.named_buffers():
            source = whole_name(name) if RENAMED else name
            given = getattr(stage, "placements", {}).get(name, Replicate())
            if source in buffers and part(buffers[source], given).shape == one.shape:
                compare(f"buffer {name}", one, buffers[source], given)
    if COPIES:
        compare_copies("gradient of", grads, right, of)


def compare_norms(own: Any, whole: Any, right: Any, of: Any, norm: Any) -> None:
    """Compare the joint norm, then that of each parameter's gradient alone."""
    compare_norm("norm", norm, norm_of(right))
    kept = {name: one.grad for name, one in own.named_parameters()}
    for alone, one in whole.named_parameters():
        if one.requires_grad:
            for name, mine in own.named_parameters():
                source, layout = of[name]
                values = drawn(whole.get_parameter(source).shape, alone)
                set_grad(mine, values if first_name(whole, source) == alone else torch.zeros_like(values), layout)
            given = float(local(stage.grad_norm(own)))
            if given != norm:  # otherwise the norm reads gradients elsewhere
                compare_norm(f"norm of {alone} alone", given, float(drawn(one.shape, alone).double().norm()))
    for name, one in own.named_parameters():
        one.grad = kept[name]


def differences() -> None:
    """Note what differs on this rank from the whole stage."""
    torch.manual_seed(SEED)
    whole = stage.whole().to(DTYPE)
    torch.manual_seed(SEED)
    own = stage.sharded(MESH).to(DEVICE, DTYPE)
    of = filled(own, whole)
    right = copy.deepcopy(whole).double()
    if STANDING:
        for name, one in right.named_parameters():
            if one.requires_grad:
                one.grad = drawn(one.shape, name).double()
    if CHECKPOINT:
        inner = own.forward
        own.forward = lambda *args: checkpoint(inner, *args, use_reentrant=False)
    for number in range(STEPS):
        batches = [batch(whole, number, mb) for mb in range(MICROBATCHES)]
        plain = step(right, batches, own=False)
        seen = step(own, batches, own=True)
        if FINISHES:
            stage.finish(own)
        if not SEVERAL_STEPS or number == 0:
            if OUTPUTS or INPUTS:
                compare_tensors(seen, plain, batches)
            if GRADIENTS or BUFFERS or COPIES:
                compare_stages(own, right, of)
        if CLIPS or NORM:
            norm = float(local(stage.grad_norm(own)))
        if NORM and (not SEVERAL_STEPS or number == 0):
            compare_norms(own, whole, right, of, norm)
        if SEVERAL_STEPS:
            update(right, norm_of(right))
            update(own, norm if CLIPS else 0.0)
    if PARAMETERS:
        for name, one in own.named_parameters():
            compare(f"{name} after {STEPS} steps", one.detach(), right.get_parameter(of[name][0]), of[name][1])
    if COPIES and SEVERAL_STEPS:
        compare_copies("value of", dict(own.named_parameters()), right, of)


def main() -> int:
    torch.set_num_threads(1)
    differences()
    for line in wrong or [f"{WHAT} equal to the whole stage's"]:
        print(f"rank {dist.get_rank()}: {line}", flush=True)
    gc.collect()  # what outlives its group may abort the process
    dist.barrier()
    dist.destroy_process_group()
    return int(bool(wrong))
