"""The plugin's tests run pytest within pytest, each in one process, with -n 0 and with -n 2."""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

Judge = Callable[..., pytest.RunResult]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise ``processes``, the ways to run, whose results must not differ.

    A module with ``IN_TWO = True`` runs with two processes in CI, because they could differ; others run with one. A
    session of xdist without workers is slow.
    """
    if "processes" in metafunc.fixturenames:
        in_two = getattr(metafunc.module, "IN_TWO", False)
        two = pytest.param(("-n2",), id="n2", marks=() if in_two else pytest.mark.nightly)
        none = pytest.param(("-n0",), id="n0", marks=pytest.mark.slow)
        metafunc.parametrize("processes", [pytest.param((), id="plain"), none, two])


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the options of the outer run from the inner one."""
    for option in importlib.import_module("gradconform.plugins.pytest.option_names").OPTIONS:
        monkeypatch.delenv(option.variable, raising=False)


@pytest.fixture
def judge(pytester: pytest.Pytester) -> Judge:
    """Run pytest with the contract on a target: two checks of profile quick, or those of ``checks``."""

    def run(
        *args: str, target: str = "reference-split", checks: tuple[str, ...] = ("*.gradients.mlp",)
    ) -> pytest.RunResult:
        globs = [f"--gradconform-checks={glob}" for glob in checks]
        return pytester.runpytest("--gradconform", target, "--gradconform-profile=quick", *globs, *args)

    return run


@pytest.fixture
def double(pytester: pytest.Pytester) -> str:
    """A target that returns every input gradient doubled, and has no split backward."""
    pytester.makepyfile(
        double="""
        from torch.distributed.pipelining._backward import stage_backward as right

        def stage_backward(stage_output, output_grads, input_values, outputs_with_grads_idxs=None):
            grads = right(stage_output, output_grads, input_values)
            return tuple(None if grad is None else grad * 2 for grad in grads)
        """
    )
    return "double.py"


@pytest.fixture
def example_of() -> Callable[[Any], str]:
    """Return the example in a docstring: the indented lines after the one that ends in ``::``."""

    def example(documented: Any) -> str:
        lines = (inspect.getdoc(documented) or "").splitlines()
        start = next(number for number, line in enumerate(lines) if line.endswith("::")) + 1
        return textwrap.dedent("\n".join(line for line in lines[start:] if not line or line.startswith("    ")))

    return example
