"""Whether a wrong kernel is found where only the kit's own samples reach, and a right device is not accused."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gradconform.covering.space import Space, covered
from gradconform.fixtures.operations.edges.edge_sample import EdgeSample
from gradconform.fixtures.operations.edges.plans import plans
from gradconform.fixtures.operations.entries import entries
from gradconform.run.judging import one_thread
from gradconform.sources.operations.oracle_checks import select_checks as select_oracles
from gradconform.sources.operations.selected import select_checks
from gradconform.trees import tensors
from tests.devices.planted import planted_over
from tests.devices.planted_faults import FAULTS

ROOT = Path(__file__).parents[2]
Process = Callable[..., "subprocess.CompletedProcess[str]"]

#: Faults that torch's samples and the contract do not find.
MISSED_BEFORE = (
    "gelu-below-minus-3", "max-pool-ties", "index-put-duplicates", "conv-stride-2-dilation-2",
    "layer-norm-odd-over-1024", "embedding-padding", "layer-norm-65536-rows", "softmax-rows-over-64",
)  # fmt: skip


@pytest.fixture
def found(abacus: Path, process: Process) -> Callable[..., dict[str, dict[str, Any]]]:
    """Judge the operations of planted faults on the device of the docs, in one process."""
    assert abacus.is_dir()

    def judged(*names: str) -> dict[str, dict[str, Any]]:
        done = process("tests.devices.find_planted", *names, PYTHONPATH=str(ROOT))
        assert done.returncode == 0, done.stderr
        several = [json.loads(line) for line in done.stdout.splitlines()]
        return {one["fault"]: one for one in several}

    return judged


@pytest.mark.slow
def test_faults_that_ordinary_samples_miss_are_found_with_their_kernel_first(
    found: Callable[..., dict[str, dict[str, Any]]],
) -> None:
    several = found(*MISSED_BEFORE)
    assert {name: one["reported"][:1] for name, one in several.items()} == {
        name: [FAULTS[name].name] for name in MISSED_BEFORE
    }
    assert max(one["seconds"] for one in several.values()) < 10.0


def values_of(sample: EdgeSample) -> list[Tensor]:
    """Return the outputs and gradients of a sample on the CPU."""
    arguments = sample.arguments(torch.float32, 0)
    with one_thread():  # several add in any order
        outputs = [one for one in tensors(sample.outputs(arguments)) if one.requires_grad]
        leaves = [one for one in arguments if one.requires_grad]
        grads = torch.autograd.grad(outputs, leaves, list(map(torch.ones_like, outputs)), allow_unused=True)
    return [one.detach() for one in (*outputs, *grads) if one is not None]


@pytest.mark.parametrize("name", MISSED_BEFORE)
def test_a_fault_planted_over_a_devices_own_kernel_is_wrong_until_it_is_removed(name: str) -> None:
    fault = FAULTS[name]
    wrong = 0
    for sample in plans()[fault.operation].samples:
        before = values_of(sample)
        with planted_over(fault.kernel, fault.wrong, "CPU"):
            wrong += not all(map(equal, before, values_of(sample)))
        assert all(map(equal, before, values_of(sample)))  # the device's own kernel is back
        if wrong:
            return
    pytest.fail(f"{fault.kernel} is wrong in no sample")


def equal(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.nan_to_num(), other.nan_to_num())


@pytest.mark.nightly
def test_every_planted_fault_is_found_with_its_kernel_first(
    found: Callable[..., dict[str, dict[str, Any]]],
) -> None:
    several = found()
    missed = {name: one["reported"] for name, one in several.items() if one["reported"][:1] != [one["expected"]]}
    assert (missed, len(several) >= 60) == ({}, True)


@pytest.mark.nightly
def test_a_right_device_is_not_accused_at_the_edges_of_kernels(abacus: Path, process: Process) -> None:
    words = ("--device", "abacus", "--device-plugin", "abacus", "--operation", "all", "--oracle", "edges")
    done = process(
        "gradconform", "run", "reference-split", *words, "--checks", "ops.edges.*", "--profile", "standard",
        "--json", "edges.json",
    )  # fmt: skip
    report = json.loads((abacus / "edges.json").read_text(encoding="utf-8"))
    accused = {result["check"] for result in report["results"] if result["status"] != "passed"}
    assert (accused, len(report["results"])) == (set(), len(plans())), done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operation", "oracle", "kernel"),
    [
        ("median", "edges", "median"),
        ("native_layer_norm", "layout", "native_layer_norm_backward"),
        ("nn.functional.fractional_max_pool2d", "layout", "fractional_max_pool2d_backward"),
    ],
)
def test_a_device_is_not_accused_of_what_the_cpu_does_in_the_same_layout(
    operation: str, oracle: str, kernel: str, abacus: Path, process: Process
) -> None:
    # torch 2.13.0's CPU, which computes here, is wrong in some layouts: see docs/devices-results.md.
    words = ("--device", "abacus", "--device-plugin", "abacus", "--operation", operation, "--oracle", oracle)
    process("gradconform", "run", "reference-split", *words, "--checks", f"ops.{oracle}.*", "--json", "one.json")
    (result,) = json.loads((abacus / "one.json").read_text(encoding="utf-8"))["results"]
    assert result["oracle"]["not_tried"]["torch's CPU kernel is wrong in this layout"] == [f"aten::{kernel}"]
    assert (result["status"], result["oracle"]["compared"] > 100) == ("passed", True)


#: A device that has no kernels to compare with.
COMPARES_NOTHING = """
import abacus
import torch

def refused(*_, **__):
    raise NotImplementedError("this device has no such kernel")

library = torch.library.Library("aten", "IMPL")
for name in ("abs", "equal"):
    library.impl(name, refused, "PrivateUse1", allow_override=True)
"""


@pytest.mark.slow
def test_layouts_are_compared_on_the_cpu(abacus: Path, process: Process) -> None:
    (abacus / "compares_nothing.py").write_text(COMPARES_NOTHING, encoding="utf-8")
    words = ("--device", "abacus", "--device-plugin", "compares_nothing", "--operation", "tanh", "--oracle", "layout")
    checks = ("--checks", "ops.layout.tanh", "--profile", "quick", "--json", "tanh.json")
    done = process("gradconform", "run", "reference-split", *words, *checks)
    (result,) = json.loads((abacus / "tanh.json").read_text(encoding="utf-8"))["results"]
    assert result["status"] == "passed", done.stdout


def test_the_plan_of_an_operation_has_every_pair_of_values_that_a_row_can_have() -> None:
    plan = plans()["nn.functional.conv2d"]
    space = Space(plan.dimensions, plan.constraints)
    rows = [tuple(sample.words.values()) for sample in plan.samples]
    assert set(space.possible(2)) <= covered(rows, 2)
    words = {(name, word) for sample in plan.few for name, word in sample.words.items()}
    assert words == {(one.name, value.word) for one in plan.dimensions for value in one.values}
    assert len(plan.few) < len(plan.samples)


def test_every_plan_is_of_an_operation_that_torch_lists() -> None:
    assert len(plans()) >= 150
    assert set(plans()) <= set(entries())


@pytest.mark.parametrize("name", ["nn.functional.gelu", "index_put", "nn.functional.cross_entropy", "where"])
def test_the_samples_of_an_operation_run_on_the_cpu_and_are_the_same_each_time(name: str) -> None:
    for sample in plans()[name].few:
        one, again = (sample.arguments(torch.float32, 20) for _ in range(2))
        assert all(map(torch.equal, one, again)), sample.text
        sample.outputs(one).sum().backward()


def test_named_operations_have_every_pair_and_all_operations_in_profile_quick_every_value() -> None:
    selected = select_checks(["nn.functional.gelu"], "quick")
    many, few = (select_oracles(["edges"], selected, in_short=not pairs).checks for pairs in (True, False))
    assert [check.id for check in many] == ["ops.edges.nn.functional.gelu"]
    assert many[0].off_cpu
    assert len(many[0].samples) > 2 * len(few[0].samples) > 0  # type: ignore[attr-defined] # checks by oracles have them


def test_samples_are_planned_at_their_first_use_by_the_worker_that_judges_them() -> None:
    plans.cache_clear()
    selected = select_checks(["nn.functional.gelu"], "quick")
    (check,) = select_oracles(["edges"], selected, in_short=True).checks
    plan = plans()["nn.functional.gelu"]
    assert "samples" not in vars(plan)
    assert check.samples == plan.few  # type: ignore[attr-defined] # as above
