from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from expecttest import assert_expected_inline

from gradconform.contract.explanation_file import explained
from gradconform.contract.frozen import frozen
from gradconform.report.checks import explanation
from gradconform.run.sources import checks_beside

Command = Callable[..., Any]


def test_explain_prints_all_facts_of_a_check(command: Command) -> None:
    done = command("explain", "split.gradients.tied-apart")
    assert (done.code, done.err) == (0, "")
    told, _, stage = done.out.partition("\nstage ")
    assert "class TiedApart(nn.Module):" in stage
    assert stage.rstrip().endswith("try it: gradconform run TARGET --checks split.gradients.tied-apart")
    assert_expected_inline(
        told,
        """\
========================== split.gradients.tied-apart ==========================
level        MUST, from profile quick on, since contract 1.0
requirement  I MUST return plain autograd's input gradients, and W accumulate
             its parameter gradients, on stage tied-apart (one weight under two
             names, around another layer).
why          W starts in the middle of the graph, so every parameter gradient
             that I forgets to store is lost silently.
catches      a parameter gradient that W drops or counts twice, or an input
             gradient of I that differs from that of B.
needs        mid_stage, shared_params, split, weight_order!=none
seed suite   test_stage_backward_weight_shared_weights (torch,
             test/distributed/pipelining/test_backward.py)
program      F0 I0 F1 I1 W0 W1
             on tied-apart; output gradients: normal
             (F forward, I input-gradient backward, W weight-gradient backward;
             the number is the micro-batch)
judged       gradconform.judge.gradients.gradients: Yield every tensor that
             differs from plain autograd's, each at the first action after which
             it is wrong.
             The numeric rule: max|g - g64| <= 2 * max|g_autograd - g64| + c *
             eps(dtype) * scale, and the same with root mean squares.
             float64: c = 96, eps = 2.22e-16, float32: c = 12, eps = 1.19e-07,
             bfloat16: c = 8, eps = 0.00781, float16: c = 8, eps = 0.000977.
source       gradconform/contract/split.py, gradient_driven
""",
    )


def test_explain_names_the_row_of_the_seed_suite(command: Command) -> None:
    assert "seed suite   test_stage_backward (torch," in command("explain", "full.loss.mlp").out


def test_explain_does_not_mention_the_numeric_rule_for_a_state_check(command: Command) -> None:
    told = command("explain", "state.params.mlp-full").out
    assert "judged       gradconform.judge.state." in told
    assert "numeric rule" not in told


def test_a_glob_explains_the_few_checks_it_matches(command: Command) -> None:
    told = command("explain", "*.loss.mlp").out
    assert "= full.loss.mlp =" in told
    assert "= split.loss.mlp =" in told


def test_a_glob_that_matches_many_checks_is_refused_with_advice(command: Command) -> None:
    done = command("explain", "split.*")
    assert (done.code, done.out) == (2, "")
    assert "expected 3 at most" in done.err
    assert "gradconform list 'split.*' prints them all" in done.err


@pytest.mark.parametrize(("typed", "near"), [("splt.gradients.mlp", "split.gradients.mlp"), ("linear-3d", "linear-3d")])
def test_a_misspelt_id_is_refused_with_the_nearest_ids(command: Command, typed: str, near: str) -> None:
    done = command("explain", typed)
    assert (done.code, done.out) == (2, "")
    assert f"no check has the id {typed!r}" in done.err
    assert near in done.err.partition("nearest:")[2]


@pytest.mark.parametrize(
    ("check", "line"),
    [
        ("step.plain", "gradconform pipeline TARGET --profile quick --checks step.plain"),
        ("step.pairs.two-predictions-3", "gradconform pipeline TARGET --profile standard --checks step.pairs.two-pred"),
        ("stage.manual.keyword-arguments-split", "gradconform stage-objects TARGET --checks stage.manual.keyword-arg"),
    ],
)
def test_a_check_beside_the_contract_is_explained_with_its_command(check: str, line: str, command: Command) -> None:
    done = command("explain", check)
    assert (done.code, done.err) == (0, "")
    assert f" {check} =" in done.out
    assert "\nrequirement  A " in done.out
    assert f"\ntry it: {line}" in done.out


def test_each_check_beside_the_contract_has_an_id_of_its_own_and_a_requirement() -> None:
    every = list(checks_beside())
    assert len({check.id for check, _ in every}) == len(every)
    assert {line.split()[1] for _, line in every} == {"pipeline", "schedule-text", "stage-objects"}
    assert all(check.requirement and check.id in line for check, line in every)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("step.pairs.*", "expected 3 at most; the first: step.pairs."),
        ("step.pairs.two-prediction-3", "nearest: step.pairs.two-predictions-3,"),
        (
            "sharded.norm.plain",
            "is a check beside the contract; 'gradconform replay sharded.norm.plain TARGET' runs it",
        ),
        ("ops.layout.amax", "is a check beside the contract; 'gradconform replay ops.layout.amax TARGET' runs it"),
    ],
)
def test_a_check_beside_the_contract_that_is_not_explained_is_refused(typed: str, said: str, command: Command) -> None:
    done = command("explain", typed)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_every_explanation_fits_the_width() -> None:
    held = frozen("1.0")
    assert held is not None
    for check in held.checks.values():
        told = list(map(str, explanation(check, explained("1.0"), 80)))
        assert any(line.startswith("judged ") for line in told), check.id
        # The source of a stage stands as it is written.
        wide = [line for line in told if len(line) > 80 and not line.startswith(("    ", "try it: "))]
        assert wide == [], check.id
