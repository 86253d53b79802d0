from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

Command = Callable[..., Any]


def test_excluded_checks_do_not_run_and_are_counted(command: Command) -> None:
    done = command("run", "autograd", "--checks", "full.*.mlp", "--exclude-checks", "full.loss.*")
    assert done.code == 5
    assert re.search(r"^full +1 of 1 +1 passed$", done.out, re.MULTILINE)
    assert re.search(r"; \d+ not\s+selected", done.out)


def test_a_pattern_that_matches_no_check_is_refused(command: Command) -> None:
    done = command("run", "autograd", "--exclude-checks", "no.such")
    assert (done.code, done.out) == (2, "")
    assert "'no.such' matches no check" in done.err


def test_a_selection_that_excludes_every_check_is_refused(command: Command) -> None:
    done = command("run", "autograd", "--exclude-checks", "*")
    assert (done.code, done.out) == (2, "")
    assert "the selection excludes all " in done.err
