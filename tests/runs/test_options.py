"""The options of a run: each field of the one list reaches every way of asking for a run, and comes back whole."""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import gradconform
from gradconform.cli import main
from gradconform.cli.arguments import parser
from gradconform.cli.run import options_of, resumed_options
from gradconform.contract import frozen
from gradconform.files.records import Header
from gradconform.reading.record_file import RecordedRun
from gradconform.reading.report import read_report
from gradconform.report.sentences import options_of as replayed
from gradconform.results import Report
from gradconform.run.options import OPTIONS, RunOptions
from gradconform.user_input.values import LARGEST_SEED, SelectionError

#: A value of each option that is not its default, as a user types it: an option without one fails the tests.
TYPED: dict[str, Any] = {
    "target": "reference-split",
    "device": "cpu:0",
    "device_plugins": "json",
    "dtype": "float64",
    "flags": "tf32=on",
    "contract": "0.9",
    "profile": "full",
    "checks": "full.gradients.mlp",
    "exclude_checks": "hooks.*",
    "skip_operations": "skips.py",
    "seed": "7",
    "strict": None,
    "probe": None,
    "require_device_execution": "95",
    "max_crashes": "3",
    "schedule": "own.csv",
    "stage": "own.py:stage",
    "operation": "sin",
    "oracle": "layout",
    "block": "lora",
    "sizes": "large",
    "setting": "deterministic",
    "fault": "overwrite",
    "with_contract": None,
    "shard": "1/2",
    "plan": "plan.json",
    "waivers": "waivers.toml",
}
NAMES = tuple(OPTIONS)


@pytest.fixture(autouse=True)
def _another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen, "versions", lambda: ("0.9", "1.0", "1.3"))


@pytest.fixture(autouse=True)
def _with_an_empty_waiver_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "waivers.toml").write_text("", encoding="utf-8")


def typed(*names: str) -> RunOptions:
    """Return the options that the command line makes of TYPED."""
    words = ["run"]
    for name in names:
        flag = [] if name == "target" else [OPTIONS[name].flag]
        words += [*flag, *([] if TYPED[name] is None else [TYPED[name]])]
    found: RunOptions = options_of(parser().parse_args(words), RunOptions)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_each_option_is_kept_in_records_resume_replay_and_workers(name: str) -> None:
    asked = typed(*{"target": None, name: None})
    assert getattr(asked, name) != OPTIONS[name].default

    written = json.loads(json.dumps(asked.to_json()))  # what stands in a record, in a report, and goes to a worker
    assert RunOptions.from_json(written) == asked

    header = Header(report={"options": written}, places=())
    again = parser().parse_args(["run", "--resume", "run.ndjson"])
    assert resumed_options(again, RecordedRun(path=Path("run.ndjson"), header=header), RunOptions) == asked

    report = Report(profile="quick", target={}, environment={}, seed=20, manifest=1, planned=1, options=written)
    assert replayed(report) == asked


@pytest.mark.parametrize("name", [name for name in NAMES if name != "target"])
def test_each_option_that_changes_results_is_in_the_reproduce_command(name: str) -> None:
    words = typed("target", name).words("results")
    assert (OPTIONS[name].flag in words) == (OPTIONS[name].changes == "results")
    replay = parser().parse_args(["replay", "full.gradients.mlp", "torch", *words])
    assert getattr(replay, name, None) is not None or not words


def test_library_calls_accept_every_option_by_name_with_its_default() -> None:
    parameters = inspect.signature(gradconform.check_stage_backward).parameters
    assert tuple(parameters) == NAMES
    defaults = {name: one.default for name, one in parameters.items() if name != "target"}
    assert RunOptions.of(None, **defaults) == RunOptions()
    assert tuple(inspect.signature(gradconform.parametrize_checks).parameters) == NAMES


def test_pytest_accepts_every_option(pytester: pytest.Pytester) -> None:
    pytester.makefile(".toml", waivers="")  # in the folder that it makes the current one
    plugin = importlib.import_module("gradconform.plugins.pytest.options")
    words = []
    for one in plugin.OPTIONS[: len(NAMES)]:
        given = TYPED[one.option.name]
        words += [one.flag] if given is None else [f"{one.flag}={given}"]
    assert plugin.read_options(pytester.parseconfig(*words)).run == typed(*NAMES)


def test_options_of_another_kit_are_refused_with_the_differences() -> None:
    with pytest.raises(SelectionError, match=r"colour is unknown, seed is missing; expected target, device"):
        RunOptions.from_json({**{name: None for name in NAMES if name != "seed"}, "colour": "red"})


def test_the_largest_seed_is_the_same_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert RunOptions(seed=LARGEST_SEED).seed == LARGEST_SEED
    said = f"expected an integer from 0 to {LARGEST_SEED}, got "
    with pytest.raises(SelectionError, match=said):
        RunOptions(seed=LARGEST_SEED + 1)
    for words in (["run", "torch"], ["replay", "full.gradients.mlp", "torch"], ["fuzz", "torch"]):
        assert main([*words, "--seed", str(LARGEST_SEED + 1)]) == 2
        assert said in capsys.readouterr().err


def test_a_run_with_flags_is_replayed_with_equal_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    words = ["--checks", "split.gradients.linear-hook", "--flag", "tf32=on", "--probe", "--no-isolation"]
    assert main(["run", "torch", *words, "--json", str(path)]) == 1
    again = "reproduce: gradconform replay split.gradients.linear-hook torch --flag tf32=on --probe"
    assert again in " ".join(capsys.readouterr().out.split())
    assert read_report(path).options["flags"] == ["tf32=on"]
    assert main(["replay", f"{path}#1"]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "seed 20, --flag tf32=on --probe" in told
    assert "same result as in the report, to the last digit" in told
