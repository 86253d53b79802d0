"""The published schema says what the dataclasses have, no more and no less."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
from jsonschema import Draft202012Validator

import gradconform.schema
from gradconform import check, environment, results
from gradconform.defaults import PROFILES
from gradconform.devices import DTYPES
from gradconform.judge import finding
from gradconform.results import Report, Result
from gradconform.schema.reading import schema

SCHEMA = schema()
PARTS = SCHEMA["$defs"]


def names(kind: type) -> set[str]:
    return {field.name for field in fields(kind)}


def test_it_is_a_schema_and_published_with_the_kit() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    (published,) = Path(gradconform.schema.__path__[0]).glob("*.schema.json")
    assert published.name == f"report-{results.SCHEMA_VERSION}.schema.json"
    assert json.loads(published.read_text(encoding="utf-8")) == SCHEMA


def test_every_object_says_all_that_may_stand_in_it() -> None:
    open_on_purpose = {"backends", "variables", "tolerances_changed", "flags", "dtypes", "places", "known_limits"}
    open_on_purpose |= {"tolerance"}

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
        (PARTS["result"], names(Result)),
        (PARTS["finding"], names(finding.Finding)),
        (PARTS["environment"], {*environment.environment(), "tolerances_changed"}),
        (PARTS["summary"], {"manifest", "planned", "ran", *results.STATUSES, "failed_should"}),
        (
            SCHEMA,
            (names(Report) - {"manifest", "planned"}) | {"schema", "schema_version", "verdict", "conforms", "summary"},
        ),
    ],
    ids=["result", "finding", "environment", "summary", "report"],
)
def test_the_schema_names_the_fields_that_the_kit_writes(part: dict[str, Any], named: set[str]) -> None:
    assert set(part["properties"]) == named
    assert set(part["required"]) == named - {"tolerances_changed"}


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (PARTS["result"]["properties"]["status"], results.STATUSES),
        (PARTS["result"]["properties"]["level"], get_args(check.Level)),
        (PARTS["result"]["properties"]["dtype"], (*DTYPES, "text")),  # text: gradconform schedule-text
        (PARTS["finding"]["properties"]["kind"], get_args(finding.Kind)),
        (SCHEMA["properties"]["profile"], PROFILES),
    ],
    ids=["status", "level", "dtype", "kind", "profile"],
)
def test_the_schema_lists_the_words_that_the_kit_uses(part: dict[str, Any], words: Any) -> None:
    assert part["enum"] == list(words)


def test_a_real_report_meets_the_schema_and_is_read_back_as_it_was(real: Report) -> None:
    Draft202012Validator(SCHEMA).validate(real.to_dict())
    assert real.summary["failed"] > 1
    assert Report.from_json(real.to_json()).to_dict() == real.to_dict()
