"""The rows of the planned space: made anew they are the same, and all that can stand together does."""

from __future__ import annotations

import fnmatch
from pathlib import Path

import pytest

from gradconform import contract
from gradconform.contract.space.checks import in_words
from gradconform.contract.space.dimensions import CONSTRAINTS, DIMENSIONS
from gradconform.contract.space.draft import draft_of
from gradconform.contract.space.rows import TRIPLES, current_rows, drawn, frozen_rows, made_anew
from gradconform.contract.space.triples import MOST_CLAIMS, SHARE
from gradconform.contract.space.uncovered import UNCOVERED
from gradconform.coverage import AREA_SHARE
from gradconform.covering.dimension import allowed
from gradconform.covering.rows import named, text
from gradconform.covering.space import Space, covered
from gradconform.report.space_page import space_page

PAGE = Path(__file__).parents[2] / "docs" / "space.md"
WAYS = pytest.mark.parametrize("way", DIMENSIONS)


def test_regenerated_rows_equal_the_rows_of_the_files() -> None:
    pytest.importorskip("allpairspy")
    for file, rows in made_anew().items():
        assert text(rows) == file.read_text(encoding="utf-8"), "run `gradconform contract --cover`"


@WAYS
def test_every_possible_pair_of_values_is_covered(way: str) -> None:
    assert set(Space(DIMENSIONS[way], CONSTRAINTS).possible(2)) - covered(current_rows()[way], 2) == set()


@WAYS
def test_profile_full_covers_most_possible_triples_of_values(way: str) -> None:
    can = set(Space(DIMENSIONS[way], CONSTRAINTS).possible(3))
    assert len(can & covered([*current_rows()[way], *frozen_rows(TRIPLES)[way]], 3)) >= SHARE * len(can)


@WAYS
def test_a_row_of_triples_needs_few_claims(way: str) -> None:
    space = Space(drawn(DIMENSIONS[way]), CONSTRAINTS)
    assert max(len(space.claims_of(enumerate(row))) for row in frozen_rows(TRIPLES)[way]) <= MOST_CLAIMS


@WAYS
def test_no_row_violates_a_constraint_and_no_row_is_duplicate(way: str) -> None:
    names = [dimension.name for dimension in DIMENSIONS[way]]
    rows = [*current_rows()[way], *frozen_rows(TRIPLES)[way]]
    assert all(allowed(dict(zip(names, row, strict=True)), CONSTRAINTS) for row in rows)
    assert len(set(rows)) == len(rows)


@WAYS
def test_every_non_default_value_names_a_check(way: str) -> None:
    words = {name.rpartition("-")[0] for name in named(DIMENSIONS[way], current_rows()[way])}
    assert {value.word for dimension in DIMENSIONS[way] for value in dimension.values[1:]} <= words


def test_each_word_names_one_value() -> None:
    for dimensions in DIMENSIONS.values():
        words = [value.word for dimension in dimensions for value in dimension.values]
        assert len(set(words)) == len(words)


def test_constraints_name_existing_values() -> None:
    known = {(d.name, value.word) for some in DIMENSIONS.values() for d in some for value in d.values}
    said = {
        (name, word)
        for constraint in CONSTRAINTS
        for side in (constraint.these, constraint.those)
        for name, words in side.items()
        for word in words
    }
    assert said <= known


#: What a value claims though the two micro-batches of a plain trial do not ask for it.
_OTHERWISE = {
    "weight_order!=none", "clears_grads", "grads_on_param", "global_state=False", "hooks=with_grad", "hooks!=nowhere",
    "bias_hooks=as_weights", "weight_when=weight", "input_pass_touches_params=False",
}  # fmt: skip


@WAYS
def test_a_value_claims_the_needs_it_adds_to_a_plain_trial(way: str) -> None:
    dimensions = DIMENSIONS[way]
    plain = {dimension.name: dimension.values[0].word for dimension in dimensions}
    before = draft_of(plain, dimensions).trial().needs
    for dimension in dimensions:
        for value in dimension.values:
            trial = draft_of({**plain, dimension.name: value.word}, dimensions).trial()
            assert trial.needs - before <= value.claims, value.word
            assert {claim for claim in value.claims if claim not in trial.needs} <= _OTHERWISE, value.word


def test_a_target_that_withholds_one_claim_loses_at_most_half_of_the_rows() -> None:
    every = [check for check in contract.checks_of().values() if check.area == "space"]
    for checks in (every, [check for check in every if check.profile != "full"]):
        claims = {need for check in checks for need in check.needs} - {"full", "split", "mid_stage"}
        shares = {claim: sum(claim in check.needs for check in checks) / len(checks) for claim in claims}
        assert {claim: share for claim, share in shares.items() if share > AREA_SHARE} == {}


@WAYS
def test_without_a_widely_used_claim_all_pairs_that_need_no_claim_are_covered(way: str) -> None:
    space, rows = Space(DIMENSIONS[way], CONSTRAINTS), current_rows()[way]
    assert "multi_input" in space.widely_claimed()
    for claim in space.widely_claimed():
        can, do = space.kept(rows, claim)
        assert {pair for pair in can - do if not space.claims_of(pair)} == set(), claim


@WAYS
def test_without_one_claim_three_quarters_of_the_remaining_pairs_are_covered(way: str) -> None:
    space, rows = Space(DIMENSIONS[way], CONSTRAINTS), current_rows()[way]
    shares = {claim: len(do) / len(can) for claim in space.claiming() for can, do in [space.kept(rows, claim)]}
    assert {claim: share for claim, share in shares.items() if share < 0.75} == {}


def test_a_row_is_described_in_words() -> None:
    plain = tuple(dimension.values[0].word for dimension in DIMENSIONS["full"])
    assert in_words("full", plain) == "default values only"
    assert in_words("full", ("reversed", "past-64-mb", *plain[2:])) == (
        "the last micro-batch's backward first; 65 micro-batches"
    )


def test_the_page_in_docs_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == space_page(), "run `gradconform contract --space > docs/space.md`"


def test_the_named_checks_cover_features_that_no_row_has() -> None:
    checks = contract.checks_of()
    globs = [pattern for one in UNCOVERED for pattern in one.checks]
    assert [pattern for pattern in globs if not fnmatch.filter(checks, pattern)] == []


def test_the_page_shows_the_coverage() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.count("(100%)") == 2 * len(DIMENSIONS)
    assert page.count(f"({SHARE:.0%})") >= len(DIMENSIONS)
