"""A name of torch that moves makes what needs it unavailable, and fails no target: each is taken away in turn."""

from __future__ import annotations

import ast
import importlib
import json
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.function import BackwardCFunction
from torch.utils.checkpoint import checkpoint

from gradconform import torch_releases
from gradconform.cli import main
from gradconform.devices.environment import environment
from gradconform.devices.flags import flags_set
from gradconform.reference import split
from gradconform.reference.recomputed import recomputes
from gradconform.target.functions import FunctionsAdapter
from gradconform.torch_releases import (
    accelerator,
    composed_operations,
    deterministic,
    dispatch,
    distributed_tensors,
    edges,
    engine,
    float8,
    node_hooks,
    operators,
    pipelining,
    precision,
    private_use,
    products,
    saved,
    settings,
    storage,
)
from gradconform.torch_releases.names import Name, UnavailableError

ROOT = Path(__file__).parents[2]
ADAPTERS = "gradconform.plugins.adapters"

#: What shows that a name is gone: a command that ends with the environment's exit code, and says why.
COMMANDS: dict[tuple[Name, ...], tuple[str, ...]] = {
    pipelining.BACKWARD: ("run", "torch", "--no-isolation", "--profile", "quick", "--checks", "full.gradients.mlp"),
    pipelining.FOR_PIPELINES: ("pipeline", "reference-split", "--schedule", "GPipe"),
    (pipelining.ORDER,): ("pipeline", "reference-split", "--schedule", "Interleaved1F1B"),
    (pipelining.RUNTIME, pipelining.LOAD_CSV): ("pipeline", "reference-split", "--schedule", "mine.csv"),
    pipelining.FOR_TEXT: ("schedule-text", "torch", "--schedule", "GPipe-2x1x3"),
    pipelining.FOR_STAGES: ("stage-objects", "torch"),
}
#: A command whose checks are unsupported where they need the name, and pass where they do not.
IN_PART: dict[tuple[Name, ...], tuple[str, ...]] = {
    (pipelining.PLACE,): ("schedule-text", "torch", "--schedule", "GPipe-2x1x3"),
    (pipelining.INFERENCE_MODE, pipelining.MODE_OF_STAGE, pipelining.VALIDATES): ("stage-objects", "torch"),
    tuple(pipelining.CACHES.values()): ("stage-objects", "torch"),
}
#: Tried by tests of their own.
APART = {
    *precision.PRECISIONS.values(), accelerator.MEMORY, accelerator.STATISTICS, accelerator.LOST, accelerator.SLEEP,
    dispatch.MODE, saved.PACKED, saved.UUID_MODULE, *private_use.IN_PYTHON, *private_use.IN_CPP, private_use.HAS_KERNEL,
    pipelining.EVALUATION, pipelining.WAIT_FOR_ALL, pipelining.CONNECTS, pipelining.VOTES, settings.TOP, settings.POP,
    settings.DEVICE_CONTEXT, settings.GET_PRECISION, settings.SET_PRECISION,
    composed_operations.KEY_OF, deterministic.SWITCH, edges.EDGE, engine.RUN, float8.SCALED_MM, operators.OPERATIONS,
    operators.MODULES, *operators.CHANGED, node_hooks.OTHER_HOOKS, products.LEVEL, products.MODES, storage.HAS_STORAGE,
    distributed_tensors.ALL_TO_ALL, distributed_tensors.IGNORE,
}  # fmt: skip


def of(table: dict[tuple[Name, ...], tuple[str, ...]]) -> list[Any]:
    return [
        pytest.param(one, words, id=f"{words[0]}-{one.spellings[0]}") for names, words in table.items() for one in names
    ]


@pytest.fixture
def take_away(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Name], None]]:
    """Take a name away: from torch where it stands in a module or a class, else from what we look for."""

    def take(name: Name) -> None:
        for module in [one for one in sys.modules if one.startswith(f"{ADAPTERS}.torch_")]:
            monkeypatch.delitem(sys.modules, module)
        home = name.home()
        there = [] if name.of_instances or home is None else [one for one in name.spellings if one in vars(home)]
        for spelling in there:
            monkeypatch.delattr(home, spelling)
        if not there or name.there():  # a class may inherit it
            spellings = name.spellings
            object.__setattr__(name, "spellings", ("renamed",))
            undo.append(lambda: object.__setattr__(name, "spellings", spellings))

    undo: list[Callable[[], None]] = []
    yield take
    for one in undo:
        one()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.csv").write_text("0F0,,0B0\n,1F0,1B0\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("name", "words"), of(COMMANDS))
def test_a_command_that_needs_a_removed_torch_name_is_unavailable(
    name: Name, words: tuple[str, ...], take_away: Callable[[Name], None], capsys: pytest.CaptureFixture[str]
) -> None:
    expected = f"has no {name.spellings[0]} in {name.owner.replace(':', '.')}, which {name.needed}"
    take_away(name)
    code = main([*words])
    said = capsys.readouterr()
    assert code == 4, said.out + said.err
    assert expected in said.err.replace("no renamed in", f"no {expected.split()[2]} in")


@pytest.mark.parametrize(("name", "words"), of(IN_PART))
def test_checks_that_need_a_removed_torch_name_are_unsupported_and_others_pass(
    name: Name, words: tuple[str, ...], take_away: Callable[[Name], None], tmp_path: Path
) -> None:
    take_away(name)
    path = tmp_path / "report.json"
    main([*words, "--json", str(path)])
    results = json.loads(path.read_text())["results"]
    assert {result["status"] for result in results} <= {"passed", "unsupported"} | (
        {"failed"} if words[0] == "schedule-text" else set()  # what torch accepts there has nothing to do with names
    )
    told = [result["message"] for result in results if result["status"] == "unsupported"]
    assert any(f"which {name.needed}" in message for message in told)


@pytest.fixture
def _precisions_put_back() -> Iterator[None]:
    """Put back what torch's older setters leave in a precision that has been taken away."""
    before = [(owner, owner.fp32_precision) for owner in precision.owners()]
    yield
    for owner, value in before:
        owner.fp32_precision = value


@pytest.mark.usefixtures("_precisions_put_back")
@pytest.mark.parametrize("path", precision.PRECISIONS)
def test_a_precision_missing_from_torch_is_none_in_the_environment(
    path: str, take_away: Callable[[Name], None]
) -> None:
    take_away(precision.PRECISIONS[path])
    assert environment()["backends"].get(path) is None
    with flags_set({"tf32": "on"}, "cpu"):
        pass


def test_gloo_schedules_are_unavailable_if_torch_waits_only_for_the_last_transfer(
    take_away: Callable[[Name], None],
) -> None:
    pipelining.wait_for_all("gloo")
    take_away(pipelining.WAIT_FOR_ALL)
    pipelining.wait_for_all("nccl")
    with pytest.raises(UnavailableError, match="hang without it"):
        pipelining.wait_for_all("gloo")


def test_without_the_sleep_function_of_torch_no_stream_is_kept_busy(take_away: Callable[[Name], None]) -> None:
    assert accelerator.sleep_of("cpu") is None
    take_away(accelerator.SLEEP)
    assert accelerator.sleep_of("cuda") is None


def test_without_memory_statistics_only_the_peak_is_read(
    take_away: Callable[[Name], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    take_away(accelerator.STATISTICS)
    monkeypatch.setattr(accelerator.MEMORY.home(), accelerator.MEMORY.spellings[0], lambda device: 7 + device.index)
    assert accelerator.peak_memory(torch.device("cuda", 1)) == 8


@pytest.mark.parametrize("compiler_is_loaded", [False, True])
def test_without_the_switch_deterministic_algorithms_are_set_by_torchs_function(
    *, compiler_is_loaded: bool, take_away: Callable[[Name], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_to: list[tuple[bool, bool]] = []
    monkeypatch.setattr(
        torch, "use_deterministic_algorithms", lambda mode, *, warn_only: set_to.append((mode, warn_only))
    )
    monkeypatch.setattr(deterministic, "_COMPILER", "sys" if compiler_is_loaded else "no such module")
    if not compiler_is_loaded:
        deterministic.use_deterministic_algorithms(mode=False, warn_only=False)
        assert set_to == []  # by the switch, which was off
        take_away(deterministic.SWITCH)
    deterministic.use_deterministic_algorithms(mode=True, warn_only=True)
    assert set_to == [(True, True)]


def test_without_device_key_names_no_operation_counts_as_composed(take_away: Callable[[Name], None]) -> None:
    celu, add = torch.ops.aten.celu.default, torch.ops.aten.add.Tensor
    assert (composed_operations.is_composed(celu, "cpu"), composed_operations.is_composed(add, "cpu")) == (True, False)
    assert composed_operations.run_composed(celu, "cpu", torch.ones(2)).tolist() == [1.0, 1.0]
    take_away(composed_operations.KEY_OF)
    assert not composed_operations.is_composed(celu, "cpu")


@pytest.mark.parametrize("gone", [operators.OPERATIONS, operators.MODULES], ids=["operations", "modules"])
def test_without_torchs_lists_there_are_no_operations_to_judge(gone: Name, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (operators.OPERATIONS, operators.MODULES):
        module = ModuleType(name.owner)
        if name is not gone:
            setattr(module, name.spellings[0], [])
        monkeypatch.setitem(sys.modules, name.owner, module)
    with pytest.raises(UnavailableError, match=f"has no {gone.spellings[0]} in .*, which lists the operations"):
        operators.listed.__wrapped__()


@pytest.mark.parametrize("name", operators.CHANGED, ids=lambda name: f"{name.owner}.{name.spellings[0]}")
def test_state_missing_from_torch_is_not_restored_after_importing_its_tests(
    name: Name, take_away: Callable[[Name], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADCONFORM_KEPT", "before")
    take_away(name)
    with operators.process_kept():
        os.environ["GRADCONFORM_KEPT"] = "meanwhile"
    assert (os.environ["GRADCONFORM_KEPT"], name.there()) == ("before", False)


def test_without_has_storage_every_tensor_counts_as_having_storage(take_away: Callable[[Name], None]) -> None:
    sparse = torch.eye(2).to_sparse()
    assert (storage.has_storage(torch.eye(2)), storage.has_storage(sparse)) == (True, False)
    take_away(storage.HAS_STORAGE)
    assert storage.has_storage(sparse)


def test_without_float8_products_an_unavailable_error_is_raised(take_away: Callable[[Name], None]) -> None:
    take_away(float8.SCALED_MM)
    one, scale = torch.zeros(16, 16).to(float8.VALUES), torch.ones(())
    with pytest.raises(UnavailableError, match="which multiplies in float8"):
        float8.scaled_product(one, one, (scale, scale), torch.bfloat16)


def test_without_a_lost_device_error_only_out_of_memory_ends_the_process(take_away: Callable[[Name], None]) -> None:
    take_away(accelerator.LOST)
    assert accelerator.ends_the_process() == (torch.OutOfMemoryError,)


def test_saved_tensor_hooks_count_as_off_if_torch_cannot_report_them(take_away: Callable[[Name], None]) -> None:
    with torch.autograd.graph.saved_tensors_hooks(lambda value: value, lambda value: value):
        assert settings.hooks_on_saved_tensors()
        take_away(settings.TOP)
        settings._found.cache_clear()
        assert not settings.hooks_on_saved_tensors()
    settings._found.cache_clear()


def test_settings_that_a_torch_lacks_are_read_and_set_by_other_names() -> None:
    assert len(settings.float32_precisions()) > 1
    names = (settings.GET_PRECISION, settings.SET_PRECISION, settings.DEVICE_CONTEXT)
    spellings = [name.spellings for name in names]
    for name in names:  # torch itself reads them all the time, so they are only renamed for the kit
        object.__setattr__(name, "spellings", ("renamed",))
    settings._found.cache_clear()
    try:
        assert settings.default_device() is None
        before = settings.float32_precisions()
        assert before == (torch.backends.cudnn.allow_tf32,)
        settings.set_float32_precisions((not before[0],))
        assert settings.float32_precisions() == (not before[0],)
        settings.set_float32_precisions(before)
    finally:
        for name, own in zip(names, spellings, strict=True):
            object.__setattr__(name, "spellings", own)
        settings._found.cache_clear()


def test_without_dispatch_modes_the_module_imports_and_the_mode_is_unavailable(
    take_away: Callable[[Name], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    take_away(dispatch.MODE)
    monkeypatch.delitem(sys.modules, dispatch.__name__)
    without = importlib.import_module(dispatch.__name__)
    with pytest.raises(UnavailableError, match="sees each operation"):
        without.DispatchMode()


def test_recomputation_is_detected_without_reading_packed_values(take_away: Callable[[Name], None]) -> None:
    ran: list[int] = []
    linear, value = nn.Linear(3, 3), torch.ones(2, 3, requires_grad=True)

    def counted(x: torch.Tensor) -> torch.Tensor:
        ran.append(1)
        found: torch.Tensor = linear(x).relu()
        return found

    again, once = checkpoint(counted, value, use_reentrant=False), counted(value)
    take_away(saved.PACKED)
    assert (recomputes([again]), recomputes([once])) == (True, False)
    assert len(ran) == 2, "looking runs nothing"
    again.sum().backward()
    take_away(saved.UUID_MODULE)
    with pytest.raises(UnavailableError, match="activation checkpointing"):
        recomputes([once])


@pytest.mark.parametrize(
    ("device", "name"),
    [*(("simpy", name) for name in private_use.IN_PYTHON), *(("simx", name) for name in private_use.IN_CPP)],
    ids=lambda value: value.spellings[0] if isinstance(value, Name) else value,
)
def test_a_simulated_device_is_unavailable(
    device: str, name: Name, take_away: Callable[[Name], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    take_away(name)
    module = f"gradconform.plugins.devices.{device}"
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(UnavailableError, match=name.needed):  # before this process has the device, for all other tests
        importlib.import_module(module)


def test_if_edges_keep_no_graph_alive_functions_do_not_claim_edges(
    take_away: Callable[[Name], None],
) -> None:
    take_away(edges.EDGE)
    functions = {"stage_backward": split.stage_backward}
    assert not FunctionsAdapter("some", functions, {}).capabilities.edge_roots


class Product(torch.autograd.Function):
    """A product, whose node is Python's own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = ctx.saved_tensors
        return grads[0] * y, grads[0] * x


@pytest.mark.parametrize("grad_mode", [True, False])
@pytest.mark.parametrize("loss", ["none", "summed", "custom"])
def test_a_custom_function_node_outlives_its_output_if_no_edge_keeps_it(
    *, loss: str, grad_mode: bool, take_away: Callable[[Name], None]
) -> None:
    take_away(edges.EDGE)
    weight, x = nn.Parameter(torch.ones(2)), torch.tensor([2.0, 3.0], requires_grad=True)
    output = Product.apply(torch.square(x), weight)  # type: ignore[no-untyped-call] # torch gives it no types
    if loss != "none":
        output = output.sum() if loss == "summed" else Product.apply(output.sum(), torch.ones(()))  # type: ignore[no-untyped-call] # as above
    assert not isinstance(edges.lasting_edge(output).node, BackwardCFunction), "torch 2.8 keeps no such node alive"
    with torch.set_grad_enabled(grad_mode):
        grads = [torch.ones(2)] if loss == "none" else None
        found, context = split.stage_backward_input([output], grads, [x], iter([weight]))
        del output
        split.stage_backward_weight(iter([weight]), context)
    assert weight.grad is not None
    assert found[0] is not None
    assert (found[0].tolist(), weight.grad.tolist()) == ([4, 6], [4, 9])


def test_looking_for_recomputation_keeps_the_hooks_of_a_parameter(take_away: Callable[[Name], None]) -> None:
    gain, x, called = nn.Parameter(torch.ones(2)), torch.ones(2, requires_grad=True), list[str]()
    gain.register_hook(lambda _: called.append("tensor"))
    gain.register_post_accumulate_grad_hook(lambda _: called.append("accumulated"))
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda packed: packed):
        output = x * gain
    take_away(saved.PACKED)
    assert not recomputes([output])
    output.sum().backward()
    assert called == ["tensor", "accumulated"], "torch 2.9 forgets hooks with a tensor that stands for a leaf"
    assert (gain.dtype, gain.tolist()) == (torch.float32, [1, 1])


def test_looking_for_recomputation_does_not_change_an_unfrozen_weight(
    take_away: Callable[[Name], None],
) -> None:
    take_away(saved.PACKED)
    linear, x = nn.Linear(2, 2).requires_grad_(requires_grad=False), torch.ones(1, 2, requires_grad=True)
    before, output = linear.weight.tolist(), linear(x)  # the graph has the weight, and nothing to accumulate into it
    gained = x * linear.bias
    linear.requires_grad_()
    assert not recomputes([output, gained])
    assert (linear.weight.tolist(), linear.bias.dtype) == (before, torch.float32)


def connecting(ranks: list[int], *messages: torch.Tensor) -> Any:
    sent = [SimpleNamespace(tensor=message) for message in messages]
    placed = dict(enumerate(ranks))
    return SimpleNamespace(stage_index_to_group_rank=placed, **{pipelining.CONNECTS.spellings[0]: lambda: sent})


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (connecting([0, 1], torch.zeros(1), torch.tensor(1)), "larger than those awaited"),
        (connecting([0, 1, 1, 0], torch.zeros(1)), "to itself"),
        (connecting([0, 1, 0, 1], torch.zeros(1)), None),
        (connecting([0]), None),
    ],
    ids=["sizes", "itself", "apart", "alone"],
)
def test_stages_that_do_not_vote_and_cannot_connect_over_gloo_are_unavailable(
    stage: Any, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipelining.connect([stage], "gloo")  # this torch's stages vote
    monkeypatch.delattr(pipelining.VOTES.home(), pipelining.VOTES.spellings[0], raising=False)
    monkeypatch.setattr(pipelining.CONNECTS.home(), pipelining.CONNECTS.spellings[0], None, raising=False)
    pipelining.connect([stage], "nccl")
    with nullcontext() if expected is None else pytest.raises(UnavailableError, match=expected):
        pipelining.connect([stage], "gloo")


@pytest.mark.parametrize("name", [distributed_tensors.ALL_TO_ALL, distributed_tensors.IGNORE])
def test_experts_over_replicas_are_unavailable_without_their_names(
    name: Name, take_away: Callable[[Name], None]
) -> None:
    take_away(name)
    with pytest.raises(UnavailableError, match="divides experts over replicas"):
        name.find()


def test_every_torch_name_is_removed_by_a_test() -> None:
    found = pkgutil.iter_modules(torch_releases.__path__, f"{torch_releases.__name__}.")
    modules = [importlib.import_module(one.name) for one in found]
    values = [value for module in modules for value in vars(module).values()]
    flat = [one for value in values for one in (value.values() if isinstance(value, dict) else [value])]
    declared = {name for one in flat for name in (one if isinstance(one, tuple) else [one]) if isinstance(name, Name)}
    tried = {name for table in (COMMANDS, IN_PART) for names in table for name in names}
    assert declared == tried | APART
    assert tried.isdisjoint(APART)


#: A whole device is of this name, and goes with it; what torch's own backends in Python walk arguments with.
OF_DEVICES = {"plugins/devices/lazy.py": "_lazy", "plugins/devices/simpy.py": "_pytree"}

#: Sharded stages that judge these functions of torch, which have no public name.
OF_STAGES = {
    "plugins/sharded/torch_context.py": {
        "_context_parallel", "_attention", "_cp_options", "_ContextParallel", "_templated_ring_attention",
        "_templated_ring_attention_backward", "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    },
    "plugins/sharded/torch_experts.py": {"_functional_collectives"},
    "reference/sharded/ulysses.py": {"_functional_collectives"},
}  # fmt: skip


def test_no_other_module_uses_a_private_name_of_torch() -> None:
    found = set()
    for folder in ("bench", "conformance", "fixtures", "plugins", "reference"):
        for path in (ROOT / folder).rglob("*.py"):
            offered = path.match("bench/upstream/*/test_*.py")  # to torch, whose own suite names them
            if path.parent.name != "torch_releases" and "standalone" not in path.name and not offered:
                found |= {(path.relative_to(ROOT).as_posix(), name) for name in private(path)}
    assert found == {*OF_DEVICES.items(), *((path, name) for path, names in OF_STAGES.items() for name in names)}


def private(path: Path) -> set[str]:
    """Return private names in imports from torch, and in chains that begin with ``torch.``."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            names |= {*(node.module or "").split("."), *(alias.name for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {part for alias in node.names for part in alias.name.split(".") if alias.name.startswith("torch.")}
        elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith("torch."):
            names |= set(ast.unparse(node).split("."))
    return {name for name in names if name.startswith("_") and not name.startswith("__")}
