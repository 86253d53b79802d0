"""What a file and the environment say of the options of ``gradconform run``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradconform.cli.arguments import RUN_DEFAULTS, parser
from gradconform.cli.option_sources import FILE, fill

Command = Callable[..., Any]

#: A value for each option that a file may have, and what the command has of it.
VALUES: dict[str, tuple[str, Any]] = {
    "target": ('"torch"', "torch"),
    "device": ('["cpu", "cuda:0"]', ["cpu", "cuda:0"]),
    "device-plugin": ('"mine"', ["mine"]),
    "dtype": ('"float32,bfloat16"', ["float32", "bfloat16"]),
    "flag": ('{tf32 = "on"}', ["tf32=on"]),
    "contract": ('"1.0"', "1.0"),
    "profile": ('"full"', "full"),
    "checks": ('["full.*", "split.*"]', ["full.*", "split.*"]),
    "exclude-checks": ('["*.lstm"]', ["*.lstm"]),
    "skip-operations": ('["skips.py"]', ["skips.py"]),
    "seed": ("7", 7),
    "strict": ("true", True),
    "probe": ('"on"', True),
    "require-device-execution": ("99.5", "99.5"),
    "max-crashes": ("3", 3),
    "schedule": ('["a,b.csv"]', ["a,b.csv"]),
    "stage": ('["model.py:a", "model.py:b"]', ["model.py:a", "model.py:b"]),
    "operation": ('["sin", "linalg.*"]', ["sin", "linalg.*"]),
    "oracle": ('["layout"]', ["layout"]),
    "block": ('"all"', ["all"]),
    "sizes": ('"large"', "large"),
    "setting": ('"autocast-*"', ["autocast-*"]),
    "fault": ('["overwrite", "doubled"]', ["overwrite", "doubled"]),
    "with-contract": ("true", True),
    "plan": ('"plan.json"', "plan.json"),
    "waivers": ('"known.toml"', "known.toml"),
    "ndjson": ('"run.ndjson"', "run.ndjson"),
    "check-timeout": ("30", 30.0),
    "start-timeout": ("31", 31.0),
    "max-lost-time": ("32.5", 32.5),
    "time-budget": ('"10m"', 600.0),
    "workers": ("2", 2),
    "maxfail": ("3", 3),
    "failures": ("2", 2),
    "output-format": ('"concise"', "concise"),
    "no-isolation": ("true", False),
    "json": ('"out.json"', "out.json"),
    "html": ('"out.html"', "out.html"),
    "junit": ('"out.xml"', "out.xml"),
}

OTHERS = {"shard": '"1/4"', "no-waivers": "true"}


def test_the_parser_of_all_commands_is_made_once() -> None:
    assert parser() is parser()


def parsed(*words: str) -> tuple[argparse.Namespace, argparse.ArgumentParser]:
    arguments = parser().parse_args(["run", *words])
    return arguments, arguments.parser


def filled(*words: str, folder: Path, **variables: str) -> argparse.Namespace:
    arguments, of_run = parsed(*words)
    fill(arguments, of_run, folder, variables)
    return arguments


def test_every_run_option_can_be_set_in_the_file(tmp_path: Path) -> None:
    lines = [f"{name} = {text}" for name, (text, _) in VALUES.items()]
    (tmp_path / FILE).write_text("\n".join(lines), encoding="utf-8")
    arguments, of_run = parsed()
    fill(arguments, of_run, tmp_path, {})
    actions = {max(one.option_strings, key=len, default=one.dest).removeprefix("--"): one for one in of_run._actions}
    assert {name: getattr(arguments, actions[name].dest) for name in VALUES} == {
        name: value for name, (_, value) in VALUES.items()
    }
    assert actions.keys() - VALUES.keys() - OTHERS.keys() == {
        "help", "list", "resume", "exitfirst", "last-failed", "quiet", "verbose",
    }  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_an_exclusive_option_is_accepted_without_its_rival(name: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(f"{name} = {OTHERS[name]}", encoding="utf-8")
    assert getattr(filled(folder=tmp_path), name.replace("-", "_")) not in {None, False}


def test_the_command_line_overrides_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('seed = 1\nprofile = "full"\ndtype = ["float64"]\nworkers = 4', encoding="utf-8")
    variables = {"GRADCONFORM_SEED": "2", "GRADCONFORM_DTYPE": "float16"}
    found = filled("--dtype", "bfloat16", "--workers", "1", folder=tmp_path, **variables)
    assert (found.dtype, found.workers, found.seed, found.profile) == (["bfloat16"], RUN_DEFAULTS["workers"], 2, "full")


def test_the_own_settings_file_overrides_the_pyproject_table(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.gradconform]\nseed = 5\nstrict = true\n", encoding="utf-8")
    assert filled(folder=tmp_path).seed == 5
    (tmp_path / FILE).write_text("probe = true\n", encoding="utf-8")
    assert filled(folder=tmp_path).seed is None


def test_file_options_that_the_command_line_excludes_are_ignored(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('waivers = "known.toml"\njson = "out.json"\nndjson = "run.ndjson"', encoding="utf-8")
    found = filled("--no-waivers", "--list", "--resume", "other.ndjson", folder=tmp_path)
    assert (found.waivers, found.json, found.ndjson) == (None, None, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("profil = 'full'", "gradconform.toml: 'profil' is not an option of 'gradconform run'; nearest: profile"),
        ("profile = 'half'", "gradconform.toml: profile = 'half': unknown profile 'half'; expected one of quick,"),
        ("workers = 'many'", "workers = 'many': expected a whole number of at least 1, got 'many'"),
        ("strict = 3", "strict = 3: expected one of 1, true, yes, on, 0, false, no, off, got 3"),
        ("seed = true", "seed = True: expected one value"),
        ("seed = [1, 2]", "seed = [1, 2]: expected one value"),
        ("dtype = ['float32', 3]", "dtype = ['float32', 3]: expected strings"),
        ("resume = 'run.ndjson'", "'resume' works on the command line only"),
        ("profile", "gradconform.toml is not valid TOML"),
    ],
)
def test_an_unknown_option_or_value_is_refused_before_the_run(
    text: str, said: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / FILE).write_text(text, encoding="utf-8")
    done = command("run", "torch")
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_a_run_prints_and_reports_the_source_of_its_options(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRADCONFORM_SEED", "9")
    (tmp_path / FILE).write_text(
        'target = "autograd"\nchecks = "full.gradients.mlp"\njson = "o.json"', encoding="utf-8"
    )
    done = command("run")
    assert done.code == 5  # no more than one check was asked for
    assert done.out.startswith(
        "options from GRADCONFORM_SEED: seed\noptions from gradconform.toml: target, checks, json\n"
    )
    report = json.loads((tmp_path / "o.json").read_text(encoding="utf-8"))
    assert (report["seed"], report["options"]["checks"]) == (9, ["full.gradients.mlp"])
    assert report["summary"]["passed"] == 1
