"""The hooks of the gradconform pytest plugin.

Write them into the ``conftest.py`` of the root folder, or into a plugin: they are called when pytest has been
configured, and a ``conftest.py`` further down is not loaded by then.
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
    """Return further registered targets by name: an adapter, or all else that can be a target.

    A name that is registered already is refused. ::

        from gradconform.reference.autograd import AutogradAdapter

        def pytest_gradconform_adapters(config):
            return {"ours": AutogradAdapter()}
    """
    raise NotImplementedError


@pytest.hookspec
def pytest_gradconform_devices(config: pytest.Config) -> Iterable[str]:
    """Make further devices usable, and return their names; called before any device's name is judged.

    A device that lives in a package of its own is imported here. ::

        import torch

        def pytest_gradconform_devices(config):
            if torch.accelerator.is_available():
                return [torch.accelerator.current_accelerator().type]
            return ["cpu:0"]
    """
    raise NotImplementedError


@pytest.hookspec
def pytest_gradconform_stages(config: pytest.Config) -> Iterable[StageCase]:
    """Return further stages: they join ``gradconform_stage``, and the run with all that is asked of an MLP.

    The ids of their checks begin with ``stage.NAME.``, as those of ``--gradconform-stage``.

    An added check fails its test like any other, but takes no part in the contract's counts, verdict or JSON report:
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
    """Return ``c`` of the numeric rule by dtype name, in units of eps times scale; the report says so.

    ::

        def pytest_gradconform_tolerances(config):
            return {"float32": 8.0}
    """
    raise NotImplementedError


@pytest.hookspec
def pytest_gradconform_result(result: Result, config: pytest.Config) -> None:
    """See each result as it comes; under pytest-xdist in the controller, from all workers.

    ::

        def pytest_gradconform_result(result, config):
            print("SAW", result.check, result.status)
    """


@pytest.hookspec
def pytest_gradconform_report(report: Report, config: pytest.Config) -> None:
    """See the final report of each run, before the JSON report is written and the summary is printed.

    ::

        def pytest_gradconform_report(report, config):
            print("VERDICT", report.verdict, report.summary["ran"])
    """
