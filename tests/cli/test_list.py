from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from expecttest import assert_expected_inline

from gradconform.cli import contract as contract_command
from gradconform.contract import checks_of
from gradconform.contract.frozen import frozen
from gradconform.report.checks import lines
from gradconform.version import CONTRACT_VERSION

CHECKS = checks_of()
FROZEN = frozen(CONTRACT_VERSION).checks  # type: ignore[union-attr] # there is a file

Command = Callable[..., Any]


def test_piped_list_has_one_tab_separated_line_per_check(command: Command) -> None:
    done = command("list", "--checks", "full.*.mlp")
    assert (done.code, done.err) == (0, "")
    first, second = (line.split("\t") for line in done.out.splitlines())
    assert first[:3] == ["full.gradients.mlp", "MUST", "quick"]
    assert second[:4] == ["full.loss.mlp", "MUST", "quick", "full,loss"]
    assert [len(first), len(second)] == [5, 5]
    assert first[4] == CHECKS["full.gradients.mlp"].requirement


def test_list_prints_the_whole_contract_by_default(command: Command) -> None:
    listed = [line.partition("\t")[0] for line in command("list").out.splitlines()]
    assert listed == list(CHECKS)


def test_a_larger_profile_includes_the_smaller_profiles(command: Command) -> None:
    found = [set(command("list", "--profile", profile).out.splitlines()) for profile in ("quick", "standard", "full")]
    assert set() < found[0] < found[1] < found[2]


def test_list_json_has_the_fields_of_each_check(command: Command) -> None:
    listed = json.loads(command("list", "--checks", "full.loss.mlp", "--json").out)
    (check,) = listed["checks"]
    assert listed["contract"] == "1.3"
    assert {key: check[key] for key in ("id", "level", "profile", "stages", "programs", "seed")} == {
        "id": "full.loss.mlp",
        "level": "MUST",
        "profile": "quick",
        "stages": ["mlp"],
        "programs": ["F0 B0 F1 B1"],
        "seed": "test_stage_backward",
    }
    assert check["requirement"] == CHECKS["full.loss.mlp"].requirement


@pytest.mark.parametrize("width", [80, 120])
def test_on_a_terminal_each_line_fits_the_width(width: int) -> None:
    told = list(map(str, lines(list(FROZEN.values()), width, contract="1.3", profile="full", manifest=len(CHECKS))))
    assert [line for line in told if len(line) > width] == []
    assert told[-1] == f"{len(CHECKS)} of {len(CHECKS)} checks of contract 1.3, profile full"


def test_on_a_terminal_each_check_is_followed_by_its_requirement() -> None:
    check = FROZEN["full.gradients.mlp"]
    assert_expected_inline(
        "\n".join(map(str, lines([check], 80, contract="1.3", profile="full", manifest=1))),
        """\
================================ full: 1 check =================================
full.gradients.mlp  MUST, quick, needs full, mid_stage
    B MUST return plain autograd's input gradients and accumulate its parameter
    gradients, on stage mlp (an MLP with biases).
1 of 1 checks of contract 1.3, profile full""",
    )


def test_list_on_a_terminal_prints_the_long_form(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract_command, "on_terminal", lambda: True)
    told = command("list", "--checks", "full.gradients.mlp").out
    assert told.startswith("===")
    assert "full.gradients.mlp  MUST, quick, needs full" in told


def test_a_pattern_that_matches_no_check_is_refused(command: Command) -> None:
    done = command("list", "--checks", "no.such")
    assert (done.code, done.out) == (2, "")
    assert "matches no check" in done.err


@pytest.mark.parametrize(
    "given", [("full.*.mlp",), ("--checks", "full.*.mlp"), ("full.gradients.mlp", "full.loss.mlp")]
)
def test_globs_are_accepted_with_and_without_the_option(command: Command, given: tuple[str, ...]) -> None:
    listed = [line.partition("\t")[0] for line in command("list", *given).out.splitlines()]
    assert listed == ["full.gradients.mlp", "full.loss.mlp"]


def test_an_unknown_area_is_refused_with_the_known_areas(command: Command) -> None:
    done = command("list", "nosuch.*")
    assert (done.code, done.out) == (2, "")
    assert "check pattern 'nosuch.*' matches no check; the areas are accumulate, caller, " in done.err


def test_commands_that_show_the_contract_do_not_import_torch() -> None:
    commands = ["list split.*", "list --json", "explain full.loss.mlp", "init -h"]
    code = f"""
import sys
from gradconform.cli import main
for command in {commands}:
    assert main(command.split()) == 0, command
    assert "torch" not in sys.modules, command
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
