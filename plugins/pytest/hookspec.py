"""The hooks of the gradconform pytest plugin.

Write them into a plugin, or into the ``conftest.py`` of the root folder. pytest calls them after its configuration. A
``conftest.py`` in a subfolder is not loaded by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gradconform.fixtures.stages.case import StageCase
    from gradconform.results import Report, Result


@pytest.hookspec
def pytest_gradconform_adapters(config: pytest.Config) -> Mapping[str, object]:
    """Return further registered targets by name: an adapter, or any other target.

    A name that is already registered is refused. ::

        from gradconform.reference.autograd import AutogradAdapter

        def pytest_gradconform_adapters(config):
            return {"ours": AutogradAdapter()}
    """
    raise NotImplementedError


@pytest.hookspec
def pytest_gradconform_devices(config: pytest.Config) -> Iterable[str]:
    """Make further devices usable, and return their names; called before any device name is checked.

    Import the package of such a device here. ::

        import torch

        def pytest_gradconform_devices(config):
            if torch.accelerator.is_available():
                return [torch.accelerator.current_accelerator().type]
            return ["cpu:0"]
    """
    raise NotImplementedError


@pytest.hookspec
def pytest_gradconform_stages(config: pytest.Config) -> Iterable[StageCase]:
    """Return further stages, for the fixture ``gradconform_stage`` and for the checks that run on an MLP.

    The ids of their checks begin with ``stage.NAME.``, like those of ``--gradconform-stage``.

    An added check fails its test like any other. It is not in the contract's counts, verdict or JSON report, because
    the contract is the same for everybody. ::

        from torch import nn
        from gradconform.fixtures.inputs import Normal
        from gradconform.fixtures.stages import StageCase

        def our_block():
            return nn.Sequential(nn.Linear(5, 7), nn.GELU())

        def pytest_gradconform_stages(config):
            return [StageCase("our-block", "our block", our_block, (Normal((3, 5)),))]
    """
    raise NotImplementedError


@pytest.hookspec
def pytest_gradconform_tolerances(config: pytest.Config) -> Mapping[str, float]:
    """Return ``c`` of the numeric rule by dtype name, in units of eps times scale; the report shows it.

    ::

        def pytest_gradconform_tolerances(config):
            return {"float32": 8.0}
    """
    raise NotImplementedError


@pytest.hookspec
def pytest_gradconform_result(result: Result, config: pytest.Config) -> None:
    """Receive each result when it is ready; with pytest-xdist in the controller, from all workers.

    ::

        def pytest_gradconform_result(result, config):
            print("SAW", result.check, result.status)
    """


@pytest.hookspec
def pytest_gradconform_report(report: Report, config: pytest.Config) -> None:
    """Receive the final report of each run, before the JSON report is written and the summary is printed.

    ::

        def pytest_gradconform_report(report, config):
            print("VERDICT", report.verdict, report.summary["ran"])
    """
