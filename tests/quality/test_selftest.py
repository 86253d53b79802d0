"""The self-test finds what it is for: a fault that survives, a variant that fails, a worker that hangs or dies."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gradconform.cli import main
from gradconform.cli.selftest import run_selftest
from gradconform.contract.shard import Shard
from gradconform.drive.reference64 import OracleCache
from gradconform.reference.variants import VARIANTS
from gradconform.report.kill_matrix import kill_lines, kill_page
from gradconform.results import Report, Result
from gradconform.run.run import Run
from gradconform.sources.faults import outcome
from gradconform.sources.faults.distribution import judge_all
from gradconform.sources.faults.matrix import KillMatrix
from gradconform.sources.faults.outcome import Outcome
from gradconform.sources.faults.subject import SelftestOptions, judge
from gradconform.user_input.values import SelectionError

PLANTED = """
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from gradconform.reference import split
from gradconform.reference.faults import FAULTS, Fault
from gradconform.reference.variants import VARIANTS
from gradconform.target.resolve import resolve

def hang():
    Path(os.environ["HANGS"]).touch()
    time.sleep(1e6)

def crash():
    os._exit(7)

def planted(name, make):
    return Fault(name, "planted", "<b>a planted & right one</b>", ("split.gradients.mlp",), False, make)

FAULTY = {
    "doubled": FAULTS["doubled"],
    "survivor": planted("survivor", lambda: resolve(split)),
    "hangs": planted("hangs", hang),
    "crashes": planted("crashes", crash),
    "elsewhere": replace(FAULTS["doubled"], name="elsewhere", dtypes=("float64",), elsewhere="it is right here"),
    "by-another": replace(FAULTS["doubled"], name="by-another", named=("lifetime.full.mlp",)),
    "complex": FAULTS["complex-parameters"],
    "biases": FAULTS["biases"],
}
CLEAN = {"linears-swapped": VARIANTS["linears-swapped"]}
RIGHT = {"first-in-first-out": VARIANTS["first-in-first-out"], "wrong": lambda: FAULTS["doubled"].make()}
"""

#: Planted faults that have a test of their own.
APART = {"hangs", "crashes", "elsewhere", "complex"}


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SelftestOptions:
    (tmp_path / "planted_catalogue.py").write_text(PLANTED, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)  # spawned workers have the path of this process
    return SelftestOptions(profile="quick", faults="planted_catalogue:FAULTY", variants="planted_catalogue:RIGHT")


def text_of(matrix: KillMatrix) -> str:
    return "\n".join(map(str, kill_lines(matrix, 100)))


def test_surviving_faults_and_failing_variants_are_reported(options: SelftestOptions) -> None:
    subjects = [("fault", name) for name in options.catalogue("fault") if name not in APART]
    subjects += [("variant", name) for name in options.catalogue("variant")]
    outcomes = judge_all(replace(options, whole=True), subjects, workers=2)  # type: ignore[arg-type] # names and roles as above
    matrix = KillMatrix(options, tuple(outcomes[0].failed), tuple(outcomes), len(outcomes))
    assert [outcome.name for outcome in outcomes] == [name for _, name in subjects]
    assert [outcome.name for outcome in matrix.survivors] == ["survivor"]
    assert [outcome.name for outcome in matrix.accused] == ["wrong"]
    assert not matrix.good
    assert "3 of 4 faults killed, 1 of 2 right variants clean" in text_of(matrix)
    assert "by-another: lifetime.full.mlp" in text_of(matrix)  # killed, though by no check that names it
    page = kill_page(matrix)
    assert "<b>a planted" not in page
    assert "&lt;b&gt;a planted &amp; right one" in page
    wrong = page.partition('id="wrong"')[2].partition("</section>")[0]
    assert re.findall(r"<summary><span>([\w-]+)</span>", wrong) == ["survivor", "wrong"]
    for fault in matrix.faults:
        told = page.rpartition(f"<span>{fault.name}</span>")[2].partition("</details>")[0]
        assert [check for check in fault.failed if check not in told] == []
        assert re.findall(r"<b>([\w.-]+)</b>", told) == [check for check in fault.failed if check in fault.named]


def test_a_fault_that_fails_only_unnamed_checks_survives_unless_a_whole_run_decides_against_it(
    options: SelftestOptions,
) -> None:
    (named,) = judge_all(options, [("fault", "by-another")])
    (whole,) = judge_all(replace(options, whole=True, exitfirst=True), [("fault", "by-another")])
    assert (named.killed, named.decided) == (False, None)
    assert (whole.killed, whole.decided) == (True, True)
    matrix = KillMatrix(options, named.failed, (named,), 1)
    assert "Checks that name it: lifetime.full.mlp" in " ".join(text_of(matrix).split())


def test_a_whole_run_ends_at_the_first_failed_must_if_asked(options: SelftestOptions) -> None:
    options = replace(options, whole=True, exitfirst=True)
    doubled, survivor = judge_all(options, [("fault", "doubled"), ("fault", "survivor")])
    assert (doubled.failed, doubled.killed) == (tuple(doubled.failed[:1]), True)
    assert doubled.ran == 1 + options.checks.index(doubled.failed[0])
    assert (survivor.ran, survivor.decided, survivor.killed) == (len(options.checks), False, False)
    matrix = KillMatrix(replace(options), options.checks, (doubled, survivor), 2)
    assert "survived: a whole run passes it: 1" in text_of(matrix)
    assert "checks that killed nothing" not in text_of(matrix)
    by_should = replace(doubled, name="by-should", decided=False, named=doubled.failed)
    matrix = KillMatrix(replace(options), options.checks, (doubled, survivor, by_should), 3)
    assert "killed by a failed SHOULD alone, which no verdict counts: 1" in text_of(matrix)
    matrix = KillMatrix(replace(options), options.checks, (doubled, survivor), 2)
    ran = doubled.ran + survivor.ran
    assert f"2 whole runs of faults: {ran} checks in " in text_of(matrix)


def test_until_the_first_failure_the_checks_of_quick_are_first(
    options: SelftestOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def run(own: Run, take: Callable[[Result], None], places: Iterable[int]) -> Report:
        checks = {item.place: item.check for item in own.plan.items}
        for place in places:
            ran.append(checks[place].profile)
            take(checks[place].result("cpu", "float32", status="passed"))
        raise _HasRunError

    monkeypatch.setattr(Run, "run", run)
    with pytest.raises(_HasRunError):
        judge(replace(options, profile="standard", whole=True, exitfirst=True), ("fault", "doubled"), OracleCache())
    assert ran == sorted(ran, key=["quick", "standard"].index)
    assert (ran.count("quick"), len(ran)) == (150, 1300)


class _HasRunError(Exception):
    """All that the test looks at has run."""


def test_a_shard_has_its_part_of_the_faults_and_variants(
    options: SelftestOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judged(_: object, subjects: list[Any], **__: object) -> list[Outcome]:
        return [Outcome(role=role, name=name) for role, name in subjects]

    monkeypatch.setattr("gradconform.cli.selftest.judge_all", judged)
    options = replace(options, variants="planted_catalogue:CLEAN")
    parts = [run_selftest(options, "[bd]*", shard=Shard(index, 2)) for index in (1, 2)]
    assert [[outcome.name for outcome in part.outcomes] for part in parts] == [
        ["doubled", "biases"],
        ["by-another", "linears-swapped"],
    ]
    assert not any(part.complete for part in parts)


@pytest.mark.slow
def test_faults_right_or_untried_in_a_dtype_are_reported_and_not_counted(
    options: SelftestOptions,
) -> None:
    options = replace(options, profile="standard", dtype="float16", variants="planted_catalogue:CLEAN")
    matrix = run_selftest(options, "[ebc][lio][sam]*e*")
    assert [outcome.name for outcome in matrix.faults] == ["complex", "biases"]
    assert [outcome.name for outcome in matrix.untried] == ["complex"]
    assert matrix.good
    text = " ".join(text_of(matrix).split())
    assert "elsewhere: it is right here" in text
    assert "complex: plain autograd or this torch supports none of the checks that name it" in text
    assert "split.gradients.complex: plain autograd on this device raised NotImplementedError: " in text
    assert "1 of 1 fault killed, 1 of 1 right variant clean; 2 faults not tried in float16" in text
    assert not {"full.gradients.complex", "split.loss.embedding-sparse"} & set(matrix.without_kills)
    with pytest.raises(
        SelectionError, match="matches only faults that do not exist in float16: elsewhere: it is right here"
    ):
        run_selftest(options, "elsewhere")


def test_a_fault_that_hangs_or_crashes_is_reported_and_the_others_are_judged(
    options: SelftestOptions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    hour_passes_when_there_is: Callable[[Path], None],
) -> None:
    hangs = tmp_path / "hangs"
    monkeypatch.setenv("HANGS", str(hangs))
    hour_passes_when_there_is(hangs)
    subjects = [("fault", name) for name in ("hangs", "crashes", "biases")]
    outcomes = judge_all(options, subjects, workers=1, time_limit=600.0)  # type: ignore[arg-type] # as above
    assert [outcome.broke for outcome in outcomes] == [
        "hung: no verdict after 600 s",
        "crashed its worker, exit code 7",
        None,
    ]
    assert outcomes[2].right
    matrix = KillMatrix(options, outcomes[2].failed, tuple(outcomes), len(outcomes))
    assert not matrix.good
    assert [outcome.name for outcome in matrix.broken] == ["hangs", "crashes"]
    assert "crashed its worker" in text_of(matrix)


def test_a_right_variant_whose_process_ended_is_broken_not_failed(options: SelftestOptions) -> None:
    matrix = KillMatrix(options, (), (Outcome(role="variant", name="mine", broke="crashed its worker, SIGSEGV"),), 1)
    assert matrix.accused == []
    assert not matrix.good
    text = text_of(matrix)
    assert "broke     mine" in text
    assert "mine: crashed its worker, SIGSEGV" in text
    assert "ACCUSED" not in text


@pytest.mark.slow
def test_selftest_exits_with_0_if_all_faults_are_found_and_1_if_one_survives(
    tmp_path: Path, options: SelftestOptions, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "matrix.html"
    assert main(["selftest", "--profile", "quick", "--faults", "doubled", "--html", str(page)]) == 0
    *_, told, last = capsys.readouterr().out.splitlines()
    assert told == f"page: {page}"
    every = f"{len(VARIANTS)} of {len(VARIANTS)}"
    assert f"1 of 1 fault killed, {every} right variants clean" in last
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    # Profile quick has no check for it, which the self-test says. The variants were judged above.
    few = partial(SelftestOptions, variants=options.variants.replace("RIGHT", "CLEAN"))
    monkeypatch.setattr("gradconform.cli.selftest.SelftestOptions", few)
    assert main(["selftest", "--profile", "quick", "--faults", "padding-trained"]) == 1
    assert "survived: no check that names it failed: 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--faults", "doubbled"], "--faults 'doubbled' matches no fault; nearest: doubled"),
        (["--dtype", "float31"], "float31"),
        (["--exitfirst"], "--exitfirst ends whole runs; add --whole"),
        (["--shard", "3/2"], "expected I/N with I from 1 to N"),
        (["--html", "."], "--html '.' is a folder"),
    ],
)
def test_a_wrong_option_is_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_fault_runs_its_named_checks_and_checks_that_found_no_fault_so_far(options: SelftestOptions) -> None:
    options = replace(options, variants="planted_catalogue:CLEAN")
    subjects = [("fault", "biases"), ("fault", "doubled"), ("variant", "linears-swapped")]
    biases, doubled, variant = judge_all(options, subjects, every_check=True)  # type: ignore[arg-type] # as above
    whole = judge_all(replace(options, whole=True), subjects)  # type: ignore[arg-type] # as above
    assert (biases.named_passed, doubled.named_passed, variant.right) == ((), (), True)
    assert (biases.named, doubled.named) == (whole[0].named, whole[1].named)
    assert (biases.cause, doubled.cause) == (whole[0].cause, whole[1].cause)
    assert set(biases.failed) | set(doubled.failed) == set(whole[0].failed) | set(whole[1].failed)
    assert set(biases.failed) & set(doubled.failed) <= {*biases.named, *doubled.named}
    alone = judge_all(options, subjects[:1])  # type: ignore[arg-type] # as above
    assert set(alone[0].failed) == set(alone[0].named)


# CI has the same of test_faults, test_kill_coverage and test_right_variants.
@pytest.mark.nightly
def test_every_fault_fails_all_its_named_checks_and_every_check_finds_a_fault(
    record_property: Callable[..., None],
) -> None:
    matrix = run_selftest(SelftestOptions())
    assert matrix.good, text_of(matrix)
    assert matrix.without_kills == []
    assert [outcome.name for outcome in matrix.faults if outcome.named_passed] == []
    record_property("causes", sum(outcome.said for outcome in matrix.values) / len(matrix.values))


def test_a_feature_missing_from_torch_is_not_claimed_and_its_fault_is_not_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = {"check": "edges.split", "requirement": "", "level": "MUST", "device": "cpu", "dtype": "float32"}
    withheld = Result(**given, status="unsupported")  # type: ignore[arg-type] # texts, as in a report
    asks = replace(withheld, unclaimed=("edge_roots",))
    assert not outcome._of_other_torch(asks)
    monkeypatch.setattr(outcome, "EDGE", replace(outcome.EDGE, spellings=("no_such_name",)))
    assert outcome._of_other_torch(asks)
    assert not outcome._of_other_torch(withheld)
