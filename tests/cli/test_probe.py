from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Command = Callable[..., Any]

SILENT = """
from gradconform.adapter import Capabilities
from gradconform.reference.autograd import AutogradAdapter

class Doubled(AutogradAdapter):
    capabilities = Capabilities(buffers=False)

    def open(self, stage, spec):
        session = super().open(stage, spec)
        backward = session.backward
        def doubled(mb, grads):
            found = backward(mb, grads)
            return tuple(2 * grad for grad in found) if list(stage.buffers()) else found
        session.backward = doubled
        return session
"""

CHECK = ("--checks", "full.gradients.batch-norm")


def test_unclaimed_features_are_not_tried(command: Command, target_file: Command) -> None:
    target_file(SILENT)
    done = command("run", "backward.py:Doubled", *CHECK)
    assert done.code == 5
    assert "1  not claimed: buffers" in done.out


@pytest.mark.parametrize("options", [("--probe",), ("--profile", "full")])
def test_a_probed_unclaimed_feature_that_is_silently_wrong_fails(
    command: Command, target_file: Command, options: tuple[str, ...]
) -> None:
    target_file(SILENT)
    done = command("run", "backward.py:Doubled", *CHECK, *options)
    assert done.code == 1
    assert "failed MUST" in done.out
    assert "not claimed: buffers; tried, and wrong without an error" in " ".join(done.out.split())
