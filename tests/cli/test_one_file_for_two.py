"""A file that a command is to write has no other use: not as another output, and not as what the command reads."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from gradconform.cli.arguments import parser
from gradconform.cli.console import OutputFileError, refuse_unwritable_outputs

Command = Callable[..., Any]

#: What is typed, and the two that name the same file.
TWO = {
    "run torch --json x --html x": "--json and --html name the same file, 'x'",
    "run torch --html x --junit ./x": "--html and --junit name the same file, './x'",
    "run torch --ndjson x --json x": "--ndjson and --json name the same file, 'x'",
    "run --resume x --json x": "--resume and --json name the same file, 'x'",
    "run torch --waivers x --json x": "--waivers and --json name the same file, 'x'",
    "run mine.py:Stage --html mine.py": "--html 'mine.py' is a file that this command reads",
    "report x --html x": "--html 'x' is a file that this command reads",
    "report x --html - --junit -": "--html and --junit both go to standard output",
    "report x --html o --markdown o": "--html and --markdown name the same file, 'o'",
    "merge x y --json y": "--json 'y' is a file that this command reads",
    "badge x -o x": "--output 'x' is a file that this command reads",
    "replay x#3 --script x": "--script 'x' is a file that this command reads",
    "bench --write x --json x": "--write and --json name the same file, 'x'",
    "device cpu --skip-operations x --skip-list x": "--skip-operations and --skip-list name the same file, 'x'",
}


@pytest.mark.parametrize("typed", TWO)
def test_one_file_for_two_purposes_is_refused_before_work_starts(
    command: Command, typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = command(*typed.split())
    assert (refused.code, refused.out) == (2, "")
    assert f"gradconform: {TWO[typed]}; " in refused.err
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_cannot_be_a_path_is_refused_as_usage_error(command: Command) -> None:
    assert command("run", "no\0file.py", "--json", "x.json").code == 2


def test_outputs_of_the_settings_file_are_compared_too(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gradconform.toml").write_text('ndjson = "x"\n', encoding="utf-8")
    assert "--ndjson and --json name the same file" in command("run", "torch", "--json", "x").err


def test_each_pair_of_equal_outputs_of_a_command_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (found,) = (one for one in parser()._actions if isinstance(one, argparse._SubParsersAction))
    written = {name: one.get_default("outputs") or () for name, one in found.choices.items()}
    assert {"run", "device", "report", "selftest", "bench", "pipeline", "merge"} <= {
        name for name, outputs in written.items() if len(outputs) > 1
    }
    for outputs in written.values():
        for pair in combinations(outputs, 2):
            named = {option.removeprefix("--").replace("-", "_"): "x" for option in pair}
            with pytest.raises(OutputFileError, match=f"{' and '.join(pair)} name the same file"):
                refuse_unwritable_outputs(argparse.Namespace(outputs=pair, **named))
