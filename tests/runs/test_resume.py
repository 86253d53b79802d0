"""A run that was killed, or whose disk was full, is gone on with: no result is lost, and none is there twice."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from gradconform.cli import main
from gradconform.devices.environment import environment
from gradconform.reading.record_file import read_run
from gradconform.run.loaded_files import loaded_files
from gradconform.run.options import RunOptions
from tests.command_process import COMMAND_OF_A_WORKER

Judged = Callable[..., Any]
Target = Callable[[str], str]

CHECKS = "full.gradients.conv2d", "full.gradients.linear-3d", "full.gradients.mlp", "full.gradients.residual"

#: Kills the run, not the worker, in the third check, once the run has written that it began.
KILLS_THE_RUN = f"""
{COMMAND_OF_A_WORKER}
def trouble(outputs):
    if calls == 5 and not os.path.exists("struck"):
        open("struck", "w").close()
        while open("run.ndjson").read().count('"started"') < 3:
            time.sleep(0.01)
        os.kill(command_of_this_worker(), signal.SIGKILL)
        time.sleep(1000)
"""


def test_a_killed_run_is_resumed_and_resuming_with_other_options_is_refused(
    tmp_path: Path, judged: Judged, target: Target
) -> None:
    name, kept = target(KILLS_THE_RUN), tmp_path / "run.ndjson"
    killed = judged(name, "--checks", ",".join(CHECKS), "--seed", "3", "--ndjson", "run.ndjson")
    assert (killed.code, killed.report) == (-9, {})
    assert [place.check for place in read_run(kept).missing] == list(CHECKS[2:])
    assert read_run(kept).started == read_run(kept).missing[0]

    (tmp_path / "other.py").write_text("", encoding="utf-8")
    for words, said in (
        (("--seed", "4"), "--seed is 3 in the file and 4 here; omit the option, or start a new run"),
        (("other.py",), "TARGET is 'target.py' in the file and 'other.py' here"),
    ):
        refused = judged("--resume", "run.ndjson", *words)
        assert (refused.code, refused.out) == (2, "")
        assert said in refused.err
    refused = judged("--resume", "run.ndjson", OMP_NUM_THREADS="2")
    assert (refused.code, refused.out) == (2, "")
    assert "environment.variables.OMP_NUM_THREADS is '1' in the file and '2' here" in refused.err

    run = judged("--resume", "run.ndjson", name, "--seed", "3")
    assert run.verdicts == dict.fromkeys(CHECKS, ("passed", None))
    assert (run.report["seed"], run.report["summary"]["not_run"]) == (3, 0)
    records = [json.loads(line) for line in kept.read_bytes().splitlines()]
    assert Counter(record["check"] for record in records if record["record"] == "result") == Counter(CHECKS)
    assert [record["record"] for record in records].count("started") == len(CHECKS) + 1

    (tmp_path / name).write_text("changed = 1\n" + (tmp_path / name).read_text(encoding="utf-8"), encoding="utf-8")
    refused = judged("--resume", "run.ndjson")
    assert (refused.code, refused.out) == (2, "")
    assert "this run differs from the recorded one: target.sha256 is '" in refused.err


def test_a_changed_plugin_of_a_device_and_its_variables_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "vendor_backend"
    (package / "lib").mkdir(parents=True)
    for name in ("__init__.py", "kernels.py", "lib/kernels.so"):
        (package / name).write_text("kernel = 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    entry = EntryPoint("vendored", "vendor_backend.kernels", "gradconform.devices")
    monkeypatch.setattr("gradconform.run.loaded_files.registered_entries", lambda: {"vendored": entry})
    found = [loaded_files(RunOptions(target="autograd"), ("cpu", "vendored"))]
    for name in ("kernels.py", "lib/kernels.so"):
        (package / name).write_text("kernel = 20\n", encoding="utf-8")
        found.append(loaded_files(RunOptions(target="autograd"), ("cpu", "vendored")))
    assert [list(one) for one in found] == [["the plugin vendor_backend of vendored"]] * 3
    assert len({one["the plugin vendor_backend of vendored"] for one in found}) == 3

    monkeypatch.setenv("VENDORED_FAST", "1")
    described = {"vendored:0": {"model": None, "driver": None}}
    assert environment(("vendored:0",), described=described)["variables"]["VENDORED_FAST"] == "1"
    assert "VENDORED_FAST" not in environment(("cpu",))["variables"]


ENGINE = "def back(*given):\n    raise RuntimeError('no backward here')\n"
STAGE = "import torch\n\nmade = torch.nn.Linear(5, 3)\nexample_args = (torch.zeros(2, 5),)\n"


@pytest.mark.parametrize("changed", ["mine.py", "engine.py", "stage.py"])
def test_a_run_is_not_resumed_with_a_changed_file_that_it_loads(changed: str, tmp_path: Path, judged: Judged) -> None:
    (tmp_path / "mine.py").write_text("WHAT = 'a module that makes a device usable'\n", encoding="utf-8")
    (tmp_path / "engine.py").write_text(ENGINE, encoding="utf-8")
    (tmp_path / "target.py").write_text("from engine import back as stage_backward\n", encoding="utf-8")
    (tmp_path / "stage.py").write_text(STAGE, encoding="utf-8")
    words = ("target.py", "--device-plugin", "mine", "--stage", "stage.py:made", "--time-budget", "0.000001s")
    assert judged(*words, "--ndjson", "run.ndjson").code == 5
    goes_on = judged("--resume", "run.ndjson", "--time-budget", "0.000001s")
    assert (goes_on.code, "another run" in goes_on.err) == (5, False)
    (tmp_path / changed).write_text(f"{(tmp_path / changed).read_text(encoding='utf-8')}# changed\n", encoding="utf-8")
    refused = judged("--resume", "run.ndjson")
    assert (refused.code, refused.out) == (2, "")
    assert "this run differs from the recorded one: " in refused.err
    assert f"{changed} has changed. Start a new run" in " ".join(refused.err.split())


@pytest.mark.parametrize("moments", [5, pytest.param(20, marks=pytest.mark.nightly)])
def test_a_run_killed_repeatedly_loses_nothing_and_repeats_nothing(moments: int, tmp_path: Path) -> None:
    script = """
import os, random, signal, sys, time
import gradconform.run.run
from gradconform.cli import main

def begin(*words):
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(main(["run", "--no-isolation", *words]))
    return child

def size():
    return os.path.getsize("run.ndjson") if os.path.exists("run.ndjson") else 0

draw = random.Random(20)
words = ["reference-split", "--ndjson", "run.ndjson"]
for _ in range(int(sys.argv[1])):
    before = size()
    child = begin(*words)
    while size() <= before:
        time.sleep(0.001)
    time.sleep(draw.uniform(0, 0.05))
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
    words = ["--resume", "run.ndjson"]
child = begin(*words, "--json", "report.json")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(moments)], cwd=tmp_path, env=environment, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    records = [json.loads(line) for line in (tmp_path / "run.ndjson").read_bytes().splitlines()]
    kinds = Counter(record["record"] for record in records)
    results = Counter(record["check"] for record in records if record["record"] == "result")
    assert set(results.values()) == {1}
    assert (len(results), kinds["run"], kinds["resumed"], kinds["end"]) == (len(records[0]["places"]), 1, moments, 1)
    assert kinds["started"] <= len(results) + moments
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert [result["check"] for result in report["results"]] == sorted(results)
    assert report["verdict"] == "conforms"


def test_a_full_disk_ends_the_run_without_a_verdict_and_it_can_be_resumed(
    tmp_path: Path, judged: Judged, command: list[str]
) -> None:
    words = ["run", "autograd", "--profile", "quick", "--ndjson", "run.ndjson", "--json", "report.json"]
    full = f"ulimit -f 32; exec {shlex.join([*command, *words])}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(["/bin/bash", "-c", full], cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert done.returncode == 4
    assert b"cannot write to 'run.ndjson' any more: File too large; the results in it are kept" in done.stderr
    assert b"conform" not in done.stdout.replace(b"gradconform", b"")
    assert not (tmp_path / "report.json").exists()
    kept = len(read_run(tmp_path / "run.ndjson").results)
    run = judged("--resume", "run.ndjson")
    assert (run.code, run.report["verdict"]) == (0, "conforms")
    assert 0 < kept < len(run.results) == run.report["summary"]["manifest"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("autograd", "--ndjson", "nowhere/run.ndjson"), "cannot open 'nowhere/run.ndjson' for writing: No such"),
        (("--resume", "run.ndjson"), "cannot open 'run.ndjson' for writing: No such file or directory"),
        (("--resume", "notes.txt"), "'notes.txt', line 1: "),
        (("autograd", "--ndjson", "notes.txt"), "'notes.txt', line 1: "),
        (("autograd", "--ndjson", "a", "--resume", "a"), "not allowed with argument --ndjson"),
        (("autograd", "--ndjson", "a", "--list"), "--list runs no check and writes no records"),
        (("autograd", "--check-timeout", "0"), "expected seconds greater than 0, such as 30 or 0.5, got '0'"),
        (("autograd", "--workers", "0"), "got '0'"),
    ],
)
def test_an_impossible_records_file_is_refused_before_anything_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("mine\n", encoding="utf-8")
    assert main(["run", *words]) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
