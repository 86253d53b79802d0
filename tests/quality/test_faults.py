"""Every fault of the catalogue is caught by the checks one would name for it, with a message that is about it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

import pytest

from gradconform import check_stage_backward, contract
from gradconform.reference.faults import FAULTS, Fault
from gradconform.reference.faults.alterations import Graph
from gradconform.report.by_cause import cause
from gradconform.report.terminal import closing
from gradconform.results import Report

from .written import mistakes_in

Judge = Callable[..., Report]

#: Of the whole contract, CI runs one part in so many on a fault of each fourth topic.
PARTS = 9

#: Of what kind the findings are that a fault of each topic may show; ``error`` only where the fault itself raises.
KINDS = {
    "accumulation": {"mismatch", "changed"},
    "afterwards": {"changed", "requires_grad", "layout"},
    "aliasing": {"changed", "shared", "mismatch", "layout"},
    "at_once": {"missing", "mismatch"},
    "by_hand": {"mismatch"},
    "caller": {"mismatch", "changed", "alive", "missing", "unexpected"},
    "calling": {"mismatch", "missing"},
    "counting": {"mismatch", "missing"},
    "differing": {"mismatch", "missing", "dtype", "unexpected", "layout"},
    "dropped": {"missing", "mismatch"},
    "edges": {"alive", "mismatch", "missing", "no_error", "changed"},
    "errors": {"changed", "missing", "unexpected", "mismatch", "no_error"},
    "graphs": {"mismatch", "missing", "nonfinite"},
    "hooks": {"hooks", "mismatch", "missing"},
    "layouts": {"mismatch", "missing"},
    "lifetime": {"alive", "mismatch", "missing"},
    "linears": {"mismatch", "missing", "changed"},
    "main_grad": {"mismatch"},
    "means": {"mismatch"},
    "modes": {"mismatch", "missing", "dtype", "nonfinite"},
    "nones": {"unexpected", "nonfinite"},
    "numerics": {"mismatch", "nonfinite", "dtype", "shape", "layout"},
    "orders": {"mismatch", "missing", "not_repeatable"},
    "pairing": {"mismatch", "shape", "unexpected", "missing", "no_error", "changed"},
    "raising": {"no_error", "changed", "missing"},
    "received": {"mismatch", "missing", "unexpected", "requires_grad", "changed", "nonfinite"},
    "recomputed": {"changed", "mismatch", "missing", "unexpected"},
    "sharing": {"mismatch", "missing", "shape", "unexpected"},
    "stepping": {"mismatch", "missing", "unexpected"},
    "sizes": {"mismatch", "missing", "nonfinite", "shape"},
    "together": {"mismatch", "missing", "shape", "unexpected"},
    "state": {"changed", "mismatch", "missing", "unexpected", "requires_grad"},
    "walks": {"mismatch", "missing", "unexpected", "shape"},
}

#: What the message on some faults has to say: one phrase per way of going wrong.
SAID = {
    "doubled": "expected",
    "biases": "got None",
    "returned-in-float64": "expected dtype torch.float32, got torch.float64",
    "nan-replaced": "expected nan",
    "sparse-gradient-made-dense": "expected layout torch.sparse_coo",
    "gradient-of-the-micro-batch-before-handed-over": "micro-batch",
    "weight-passes-of-two-stages-swapped": "after ",
    "zip-truncates": "raised no error; expected one",
    "partial-update-before-raising": "changed although the action raised",
    "returned-buffer-reused": "changed after it was returned",
    "output-gradient-returned": "shares storage with output gradient",
    "random-numbers-drawn": "the random number generator",
    "frozen-parameters-thaw": "expected False, got True",
    "stale-weight-result": "what W returns for",
    "outputs-kept-by-a-cycle": "micro-batch",
    "graph-retained": "the graph is kept",
    "norms-kept": "more tensors alive after the last micro-batch",
    "parameter-hooks-never": "called 0 instead of",
    "post-accumulate-hooks-before-the-gradient": "received a wrong gradient",
    "all-none-refused": "no gradient reached this node",
    "parameter-gradients-slightly-large": "the mean error over 44 draws",
    "sums-in-the-order-of-a-set": "is not bit-equal to the first run in repeat",
}

#: The faults that are none in a dtype, each for the reason that it gives.
LOST_IN_ROUNDING = {"relative-error-1e-5", "relative-error-3e-6", "rounded-through-bfloat16"}
OF_ONE_DTYPE = {"float64-gradient-through-the-dtype-of-the-others"}
OF_FINE_DTYPES = {"bucket-in-the-narrowest-dtype", "small-elements-dropped"}
OF_COARSE_DTYPES = {"bucket-of-the-narrowest-dtype-alone", "gradient-in-the-dtype-of-its-parameter"}
NONE_IN = {
    "float64": OF_ONE_DTYPE
    | OF_COARSE_DTYPES
    | {
        "sums-truncated",
        "gradients-in-the-dtype-of-autocast",
        "sums-in-the-default-dtype",
    },
    "float32": {"sums-truncated"} | OF_COARSE_DTYPES,
    "bfloat16": LOST_IN_ROUNDING
    | OF_ONE_DTYPE
    | OF_FINE_DTYPES
    | {"gradients-in-the-dtype-of-autocast", "elements-past-32768-dropped"},
    "float16": LOST_IN_ROUNDING | OF_ONE_DTYPE | OF_FINE_DTYPES,
}


def in_dtype(fault: Fault, dtype: str = "float32") -> bool:
    return fault.dtypes is None or dtype in fault.dtypes


@pytest.mark.parametrize("fault", [pytest.param(fault, id=name) for name, fault in FAULTS.items() if in_dtype(fault)])
def test_every_check_that_a_fault_names_finds_it(fault: Fault, judge_fault: Judge) -> None:
    report = judge_fault(fault, diagnose=fault.name in SAID)
    # A row of the space has some twenty values, of which another may hide the fault: one row of each name is enough.
    failed = [result for result in report if result.status == "failed"]
    missed = {result.check for result in report} - {result.check for result in failed}
    assert {check for check in missed if not check.startswith("space.")} == set()
    assert not missed or any(result.check.startswith("space.") for result in failed)
    assert not report.conforms
    assert report.verdict == "does not conform"
    kinds = {result.kind for result in failed}
    assert kinds <= KINDS[fault.topic] | ({"error"} if fault.raises else set())
    assert all(finding["where"] and finding["text"] for result in report for finding in result.findings)
    assert all(SAID.get(fault.name, "") in result.message for result in failed)
    shown = [re.sub(r"^\[\d+\] +\d+  |^ +", "", str(line)) for line in closing(report, 5000)]
    texts = [*(result.message for result in failed), *map(cause, failed), *shown]
    assert [mistake for text in texts for mistake in mistakes_in(text)] == []
    of_none = [result for result in failed if "None under" in cause(result) or "is None, a" in cause(result)]
    assert all(str(result.findings[0]["text"]).startswith("expected ") for result in of_none)


#: The faults of which no named check can be judged: torch lacks some operations for complex and for sparse numbers.
UNTRIED_IN: dict[str, list[str]] = {
    "float64": [],
    "bfloat16": [
        "complex-parameters",
        "conjugated-only-with-a-bias",
        "complex-gradient-conjugated",
        "imaginary-part-lost",
    ],
    "float16": [
        "complex-parameters",
        "walk-ends-at-custom-functions",
        "conjugated-only-with-a-bias",
        "sparse-gradient-made-dense",
        "complex-gradient-conjugated",
        "imaginary-part-lost",
        "weight-listed-twice-counted-twice",
    ],
}


def missed_in(dtype: str, faults: Iterable[Fault], judge: Judge) -> tuple[list[tuple[str, str, str]], list[str]]:
    """Return the named checks that do not find a fault in a dtype, and the faults of which none can be judged."""
    missed, untried = [], []
    for fault in faults:
        report = judge(fault.make(), diagnose=False, checks=fault.named, dtype=dtype, strict=True)
        ran = [result for result in report if (result.status, result.kind) != ("unsupported", "environment")]
        # What a row of the space draws may be lost in a coarser dtype's rounding; all rows that are named are not.
        rows = [result for result in ran if result.check.startswith("space.")]
        lost = rows if any(result.status == "failed" for result in rows) else []
        missed += [(fault.name, one.check, one.status) for one in ran if one.status != "failed" and one not in lost]
        untried += [] if ran else [fault.name]
    return missed, untried


@pytest.mark.slow
def test_every_check_that_a_fault_names_finds_it_in_bfloat16(judge: Judge) -> None:
    some = [fault for fault in FAULTS.values() if in_dtype(fault, "bfloat16")][::4]
    missed, untried = missed_in("bfloat16", some, judge)
    assert missed == []
    assert set(untried) <= set(UNTRIED_IN["bfloat16"])


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", UNTRIED_IN)
def test_every_check_that_a_fault_names_finds_it_in_the_other_dtypes(dtype: str, judge: Judge) -> None:
    missed, untried = missed_in(dtype, (fault for fault in FAULTS.values() if in_dtype(fault, dtype)), judge)
    assert missed == []
    assert untried == UNTRIED_IN[dtype]
    assert {name for name, fault in FAULTS.items() if not in_dtype(fault, dtype)} == NONE_IN[dtype]


def test_a_fault_limited_to_some_dtypes_gives_the_reason() -> None:
    assert {name for name, fault in FAULTS.items() if fault.elsewhere} == {
        name for name, fault in FAULTS.items() if fault.dtypes is not None
    }
    assert {name for name, fault in FAULTS.items() if not in_dtype(fault)} == NONE_IN["float32"]


def first_of(topic: str) -> Fault:
    return next(fault for fault in FAULTS.values() if fault.topic == topic)


@pytest.mark.slow
@pytest.mark.parametrize("topic", list(KINDS)[::4])
def test_a_fault_fails_a_part_of_the_contract_without_an_error_of_the_kit(topic: str, judge: Judge) -> None:
    fault, first = first_of(topic), list(KINDS).index(topic) % PARTS
    standard = sorted(check.id for check in contract.checks_of().values() if check.profile != "full")
    report = judge(fault.make(), checks=[*fault.named, *standard[first::PARTS]], strict=True)
    assert report.summary["error"] == 0
    assert report.summary["failed"] > 0
    assert not report.conforms


@pytest.mark.nightly
@pytest.mark.parametrize("topic", KINDS)
def test_a_fault_fails_the_whole_contract_without_an_error_of_the_kit(topic: str) -> None:
    report = check_stage_backward(first_of(topic).make(), strict=True)
    assert report.summary["error"] == 0
    assert report.whole
    assert not report.conforms


def test_a_fault_names_checks_of_the_standard_profile_only() -> None:
    standard = [check.id for check in contract.checks_of().values() if check.profile != "full"]
    for fault in FAULTS.values():
        assert all(any(fnmatchcase(name, pattern) for name in standard) for pattern in fault.named), fault.name


def test_every_topic_has_faults_and_every_fault_a_topic() -> None:
    assert {fault.topic for fault in FAULTS.values()} == set(KINDS)
    assert set(SAID) <= set(FAULTS)
    assert min(Counter(fault.topic for fault in FAULTS.values()).values()) >= 3
    assert len(FAULTS) >= 60


def test_unaltered_parts_of_the_faults_pass() -> None:
    from gradconform.reference.faults.alterations import RIGHT, every_grad, output_grads, param_grads, target  # noqa: PLC0415 (it imports torch)

    for functions in (RIGHT, param_grads(lambda _, added, __: added), output_grads(lambda _, grads: grads)):
        report = check_stage_backward(target(functions), profile="quick", strict=True)
        assert report.conforms, report.failures
    report = check_stage_backward(target(every_grad(lambda grad: grad)), profile="quick", strict=True)
    assert report.conforms, report.failures


def test_a_graph_lists_the_uses_of_a_leaf_and_the_path_to_the_inputs() -> None:
    import torch  # noqa: PLC0415 (it imports torch)

    weight = torch.nn.Parameter(torch.ones(2, 2))
    lone = torch.nn.Parameter(torch.ones(2))
    x = torch.ones(2, 2, requires_grad=True)
    graph = Graph.behind(torch.sin(torch.sin(x * weight) * weight) + lone.exp())
    assert len(graph.users_of(weight)) == 2
    assert graph.apart(weight) == 2
    assert set(map(id, graph.parameters())) == {id(weight), id(lone)}
    assert not set(graph.users_of(lone)) & graph.input_path()
    assert set(graph.users_of(weight)) <= graph.input_path()
