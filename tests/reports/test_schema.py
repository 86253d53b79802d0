"""The published schema says what the dataclasses have, no more and no less."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
from jsonschema import Draft202012Validator

import gradconform.reading
from gradconform import results
from gradconform.contract import check
from gradconform.coverage import Coverage, Lack
from gradconform.devices import environment
from gradconform.devices.dtypes import DTYPES
from gradconform.diagnosis import cause
from gradconform.judge import finding
from gradconform.reading.report import read_report, schema
from gradconform.results import Report, Result
from gradconform.user_input.values import PROFILES

SCHEMA = schema()
PARTS = SCHEMA["$defs"]


def names(kind: type) -> set[str]:
    return {results.JSON_NAMES.get(field.name, field.name) for field in fields(kind)}


def test_the_schema_is_valid_and_published_with_the_kit() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    (published,) = Path(gradconform.reading.__path__[0]).glob("*.schema.json")
    assert published.name == f"report-{results.SCHEMA_VERSION}.schema.json"
    assert json.loads(published.read_text(encoding="utf-8")) == SCHEMA


def test_every_object_of_the_schema_lists_its_allowed_fields() -> None:
    open_on_purpose = {"backends", "variables", "tolerances_changed", "flags", "dtypes", "indices", "known_limits"}
    open_on_purpose |= {"tolerance", "options", "withheld", "not_tried"}

    def closed(part: Any, name: str) -> None:
        if isinstance(part, dict):
            if part.get("type") == "object" and name not in open_on_purpose:
                assert part["additionalProperties"] is False, name
            for key, inner in part.items():
                closed(inner, key)

    closed(SCHEMA, "report")


@pytest.mark.parametrize(
    ("part", "named"),
    [
        (PARTS["result"], names(Result) - {"exhausted"}),  # said to the run alone, which then replaces its worker
        (PARTS["finding"], names(finding.Finding) | {"frames", "places"}),  # of the exception that was raised
        (PARTS["environment"], {*environment.environment(), "tolerances_changed"}),
        (PARTS["summary"], {"manifest", "planned", "ran", *results.STATUSES, "failed_should"}),
        (PARTS["extent"], names(Coverage)),
        (PARTS["lack"], names(Lack)),
        (
            SCHEMA,
            (names(Report) - {"manifest", "planned"})
            | {"schema", "schema_version", "verdict", "conforms", "extent", "summary"},
        ),
    ],
    ids=["result", "finding", "environment", "summary", "extent", "lack", "report"],
)
def test_the_schema_names_the_fields_that_the_kit_writes(part: dict[str, Any], named: set[str]) -> None:
    assert set(part["properties"]) == named
    optional = {"tolerances_changed", "made", "imprecise", "oracle", "undone", "frames", "places", "time_limit"}
    assert set(part["required"]) == named - optional


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (PARTS["result"]["properties"]["status"], results.STATUSES),
        (PARTS["result"]["properties"]["level"], get_args(check.Level)),
        (PARTS["result"]["properties"]["dtype"], (*DTYPES, "text")),  # text: gradconform schedule-text
        (PARTS["finding"]["properties"]["kind"], get_args(finding.Kind)),
        (PARTS["finding"]["properties"]["sort"], get_args(results.Sort)),
        (SCHEMA["properties"]["profile"], PROFILES),
    ],
    ids=["status", "level", "dtype", "kind", "sort", "profile"],
)
def test_the_schema_lists_the_words_that_the_kit_uses(part: dict[str, Any], words: Any) -> None:
    assert part["enum"] == list(words)


def test_the_schema_lists_each_cause_and_its_fields() -> None:
    properties = PARTS["cause"]["properties"]
    assert set(properties) == names(cause.Cause) | {"text"}
    assert properties["kind"]["enum"] == [kind.name.lower() for kind in cause.Mistake]


def test_a_real_report_is_valid_and_read_back_unchanged(real: Report) -> None:
    Draft202012Validator(SCHEMA).validate(real.to_dict())
    assert real.summary["failed"] > 1
    assert read_report(real.to_json()).to_dict() == real.to_dict()
