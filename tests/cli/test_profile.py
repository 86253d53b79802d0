from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gradconform.user_input.values import PROFILES

Command = Callable[..., Any]


@pytest.mark.parametrize("profile", PROFILES)
def test_the_report_names_the_profile(command: Command, profile: str) -> None:
    done = command("run", "autograd", "--profile", profile, "--checks", "full.gradients.mlp")
    assert f"checks of contract 1.3, profile {profile}, ran" in done.out


def test_the_default_is_standard(command: Command) -> None:
    assert "profile standard" in command("run", "autograd", "--checks", "full.gradients.mlp").out


def test_a_check_of_a_larger_profile_is_refused_with_that_profile(command: Command) -> None:
    done = command("run", "autograd", "--profile", "quick", "--checks", "full.seed_size.mlp-512")
    assert (done.code, done.out) == (2, "")
    assert "matches no check of profile quick; use profile full" in done.err


def test_an_unknown_profile_is_refused_with_the_nearest_name(command: Command) -> None:
    done = command("run", "autograd", "--profile", "quik")
    assert (done.code, done.out) == (2, "")
    assert "unknown profile 'quik' (did you mean quick?); expected one of quick, standard, full" in done.err
