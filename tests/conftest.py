"""For all tests: pytest's own fixture for testing plugins, and the schema that every report has to meet."""

from __future__ import annotations

import importlib
import json

import pytest
from jsonschema import Draft202012Validator

from gradconform.results import Report
from gradconform.schema.reading import schema

pytest_plugins = ["pytester"]

# What an inner pytest imports it also forgets, and torch and the registry of checks can't be imported twice.
for name in (
    "matching", "oracle", "session", "plugins.contract_run", "plugins.fixture_values", "plugins.items",
    "plugins.recorder", "plugins.summary", "reference.split", "reference.autograd", "preflight",
    "plugins.adapters.torch_functions",
):  # fmt: skip
    importlib.import_module(f"gradconform.{name}")

_NIGHTLY = "python -m pytest -m nightly -o faulthandler_timeout=3600"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip nightly tests, counted and told, where -m does not name them."""
    if "nightly" not in config.option.markexpr:
        for item in items:
            if item.get_closest_marker("nightly"):
                item.add_marker(pytest.mark.skip(reason=f"nightly: {_NIGHTLY} runs it"))


@pytest.fixture(autouse=True)
def _lines_are_as_wide_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make what is printed independent of the terminal that the tests are run in, if any."""
    monkeypatch.setenv("COLUMNS", "100")


_VALIDATOR = Draft202012Validator(schema())


@pytest.fixture(autouse=True)
def _every_report_meets_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold each report that a test makes in this process against the published schema."""
    to_json = Report.to_json

    def held(report: Report) -> str:
        text = to_json(report)
        _VALIDATOR.validate(json.loads(text))
        return text

    monkeypatch.setattr(Report, "to_json", held)
