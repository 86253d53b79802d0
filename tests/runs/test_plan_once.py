"""What a plan measures of samples is measured once: workers, resumed runs and later runs read it as data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from gradconform.exits import RunRefusedError
from gradconform.fixtures.operations.measured import MeasuredError, outcomes_of, to_json
from gradconform.run.options import RunOptions
from gradconform.run.planning import Planning
from gradconform.run.run import Run
from gradconform.run.selection import selection_of
from gradconform.sources.operations import checks as operation_checks
from gradconform.sources.operations import selected as on_operation
from gradconform.sources.operations.plan_file import PlanFileError, plan_file
from gradconform.sources.operations.selected import select_checks

#: Imported by every worker before it plans. Whoever measures a sample there that was planned finds it unstable.
UNSTABLE = """
import os
from gradconform.sources.operations import selected as on_operation

measured = on_operation.judgeable

def judgeable(entry, number):
    with open("measured.txt", "a") as file:
        print(entry.name, number, file=file)
    if os.environ.get("GRADCONFORM_WORKER", "0") != os.environ["MEASURES"]:
        return "give other values each time"
    return measured(entry, number)

on_operation.judgeable = judgeable
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command on operations, with the plugin, in a process of its own."""
    (tmp_path / "unstable.py").write_text(UNSTABLE, encoding="utf-8")

    def command(*words: str, measures: str = "0") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "gradconform", "run", *words],
            cwd=tmp_path,
            env={
                **os.environ,
                "MEASURES": measures,
                "PYTHONPATH": str(tmp_path),
                "COLUMNS": "100",
                "XDG_CACHE_HOME": str(tmp_path / "caches"),
            },
            capture_output=True,
            text=True,
            check=False,
        )

    return command


ASKED = ("reference-split", "--device-plugin", "unstable", "--operation", "erf,sin", "--profile", "quick")


def as_values(asked: on_operation.OnOperations) -> list[Any]:
    """Return what tells one plan from another."""
    cases = [(check.id, repr(trial.stages)) for check in asked.checks for trial in check.trials]
    return [cases, asked.description, asked.nodes, asked.left_out]


def test_a_plan_from_stored_measurements_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["abs", "cumprod", "nn.functional.dropout", "unique", "bernoulli", "empty_like"]
    names = [name for name in names if name in on_operation.entries()]
    first = select_checks(names, "quick")
    written = json.loads(json.dumps(to_json(first.outcomes)))

    def measure(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(on_operation, "judgeable", measure)
    again = select_checks(names, "quick", written)
    assert as_values(again) == as_values(first)
    assert to_json(again.outcomes) == written


def test_the_measurements_of_a_plan_that_is_not_completed_are_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def until_the_second(_: object, done: int) -> None:
        if done:
            raise RunRefusedError(str(done), 5)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(Planning, "begin", until_the_second)
    options = RunOptions(target="autograd", operation=("abs", "sin"), profile="quick")
    with pytest.raises(RunRefusedError):
        operation_checks.select(options, None)
    with plan_file(None, "quick") as file:
        assert list(file.known) == ["abs"]


@pytest.mark.parametrize(
    "values", [[[0, "some other reason"]], [[0, {"shapes": [[2]]}]], [["x", "raise on the CPU"]], 3], ids=repr
)
def test_invalid_measurements_are_refused(values: object) -> None:
    with pytest.raises(MeasuredError, match="cannot read the measured samples of 'abs'"):
        outcomes_of({"abs": values}, "abs")


@pytest.mark.slow
def test_a_worker_uses_the_plan_of_the_first_process(
    run: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run(*ASKED, "--operation", "a*", "-n", "2")  # so many that both workers are needed
    assert (done.returncode, done.stderr) == (0, "")
    assert "no verdict on contract" in done.stdout
    assert "samples skipped" not in done.stdout


@pytest.mark.slow
def test_a_resumed_run_measures_nothing_again(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    run(*ASKED, "--ndjson", "run.ndjson")
    lines = (tmp_path / "run.ndjson").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "run.ndjson").write_text("".join(lines[:3]), encoding="utf-8")  # the header and one result
    done = run("--resume", "run.ndjson", measures="none of them")
    assert (done.returncode, done.stderr) == (0, "")
    assert "4 of 4 checks passed" in done.stdout


@pytest.mark.slow
def test_a_damaged_plan_in_the_records_is_refused(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    run(*ASKED, "--ndjson", "run.ndjson")
    header, *rest = (tmp_path / "run.ndjson").read_text(encoding="utf-8").splitlines(keepends=True)
    values = json.loads(header)
    values["measured"]["erf"] = [[0, "some other reason"]]
    (tmp_path / "run.ndjson").write_text("".join([json.dumps(values) + "\n", *rest[:2]]), encoding="utf-8")
    done = run("--resume", "run.ndjson")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gradconform: cannot read the measured samples of 'erf': ValueError: 'some other")


def measured_in(folder: Path) -> list[str]:
    """Return what has been measured there, in order."""
    return (folder / "measured.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.slow
def test_a_later_run_measures_only_new_operations(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    first, again = run(*ASKED, "--list"), run(*ASKED, "--list", measures="nobody")
    assert first.returncode == 0
    assert again.stdout == first.stdout
    count = len(measured_in(tmp_path))
    assert count == len(set(measured_in(tmp_path))) > 0
    assert run(*ASKED, "--list", "--operation", "cos").returncode == 0
    assert {line.partition(" ")[0] for line in measured_in(tmp_path)[count:]} == {"cos"}


@pytest.mark.slow
def test_shards_on_several_machines_share_the_plan_in_a_file(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    planned = run(*ASKED, "--list", "--plan", "plan.json")
    count = len(measured_in(tmp_path))
    assert (planned.returncode, count > 0) == (0, True)
    for shard in ("1/2", "2/2"):
        words = (*ASKED, "--plan", "plan.json", "--shard", shard, "--json", f"{shard[0]}.json")
        assert run(*words, measures="nobody").returncode == 0
    assert len(measured_in(tmp_path)) == count
    done = subprocess.run(
        [sys.executable, "-m", "gradconform", "merge", "1.json", "2.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "4 of 4 checks passed" in done.stdout


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for caches of the plans of one test, which does not exist yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches/gradconform/plans"


def planned(given: str | None = None, profile: str = "quick", **outcomes: object) -> dict[str, object]:
    """Return what a plan that measures ``outcomes`` finds in the file."""
    with plan_file(given, profile) as file:
        found = dict(file.known)
        file.keep({**found, **outcomes})
    return found


def test_the_cache_stores_measurements_separately_for_each_profile(caches: Path) -> None:
    assert planned(sin=1) == {}
    assert planned(cos=2) == {"sin": 1}
    assert planned() == {"sin": 1, "cos": 2}
    assert planned(profile="full") == {}
    assert len([*caches.glob("*.json")]) == 1  # of the one that measured something


def test_a_cache_of_another_kit_is_not_read(caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned(sin=1)
    assert caches.is_dir()
    monkeypatch.setattr("gradconform.sources.operations.plan_file.kit_sha256", lambda: "another" * 4)
    assert planned() == {}


@pytest.mark.parametrize("damaged", ["", '{"meas', "[]", '{"measured": 3, "made_by": 4}'])
def test_a_damaged_cache_is_written_again(caches: Path, damaged: str) -> None:
    planned(sin=1)
    [kept] = caches.glob("*.json")
    kept.write_text(damaged, encoding="utf-8")
    assert planned(sin=1) == {}
    assert planned() == {"sin": 1}


def test_invalid_values_in_the_cache_are_measured_again(caches: Path) -> None:
    options = RunOptions.of("reference-split", operation="sin", profile="quick")
    first = Run(options).measured
    [kept] = caches.glob("*.json")
    whole = kept.read_text(encoding="utf-8")
    kept.write_text(whole.replace('"traits"', '"habits"'), encoding="utf-8")
    assert Run(options).measured == first
    assert json.loads(kept.read_text(encoding="utf-8")) == json.loads(whole)


def test_a_run_works_without_a_writable_cache(caches: Path) -> None:
    caches.parents[1].write_text("a file, so no folder", encoding="utf-8")
    assert planned(sin=1) == {}
    assert planned() == {}


def test_old_cache_files_are_removed(caches: Path) -> None:
    planned(sin=1)
    old, young = caches / "old.json", caches / "young.json"
    for file, days in ((old, 31), (young, 29)):
        file.write_text("{}", encoding="utf-8")
        os.utime(file, (time.time() - days * 24 * 3600,) * 2)
    planned(cos=2)
    assert (old.exists(), young.exists()) == (False, True)


@pytest.mark.usefixtures("caches")
def test_concurrent_plans_measure_once() -> None:
    measured = []

    def plan(number: int) -> object:
        with plan_file(None, "quick") as file:
            if "sin" not in file.known:
                time.sleep(0.05)
                measured.append(number)
                file.keep({"sin": number})
                return number
            return file.known["sin"]

    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(plan, range(200)))
    assert len(measured) == 1
    assert found == set(measured)


def test_a_plan_file_of_another_run_is_refused_and_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    assert planned(str(file)) == {}
    assert planned(str(file), sin=1) == {}
    assert planned(str(file)) == {"sin": 1}
    with pytest.raises(
        PlanFileError, match=r"plan.json: the file does not fit this run: expected profile full, got quick"
    ):
        planned(str(file), "full")
    values = json.loads(file.read_text(encoding="utf-8"))
    values["made_by"] |= {"torch": "1.0.0"}
    for damaged, reason in (
        (json.dumps(values), r"expected torch .*, got 1\.0\.0; remove it, or name another file"),
        ("[]", r"cannot read the file: TypeError: .*; remove it, or name another file"),
    ):
        file.write_text(damaged, encoding="utf-8")
        with pytest.raises(PlanFileError, match=reason):
            planned(str(file), sin=1)
        assert file.read_text(encoding="utf-8") == damaged
    with pytest.raises(
        PlanFileError, match=r"the folder '.*nowhere' does not exist; name a file in an existing folder"
    ):
        planned(str(tmp_path / "nowhere" / "plan.json"))
    assert [one.name for one in tmp_path.glob("*.*")] == ["plan.json"]


def test_a_plan_file_has_the_default_file_permissions(tmp_path: Path) -> None:
    planned(str(tmp_path / "plan.json"), sin=1)
    (tmp_path / "other").touch()
    assert (tmp_path / "plan.json").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_an_endless_plan_file_is_refused() -> None:
    with pytest.raises(PlanFileError, match=r"--plan /dev/zero: cannot read the file: OSError: .*not a regular file"):
        planned("/dev/zero")


def test_a_plan_file_with_invalid_values_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    planned(str(file), sin=[[0, "some other reason"]])
    with pytest.raises(PlanFileError, match=r"--plan .*plan.json: cannot read the measured samples of 'sin'"):
        Run(RunOptions.of("reference-split", operation="sin", profile="quick", plan=file))


@pytest.mark.usefixtures("caches")
def test_samples_are_measured_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, judgeable = list[int](), on_operation.judgeable

    def counted(*sample: Any) -> Any:
        threads.append(torch.get_num_threads())
        return judgeable(*sample)

    monkeypatch.setattr(on_operation, "judgeable", counted)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        selection_of(RunOptions.of("torch", operation="sin", profile="quick"), None)
        assert (set(threads), torch.get_num_threads()) == ({1}, 2)
    finally:
        torch.set_num_threads(before)
