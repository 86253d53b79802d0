"""Plain English: what people read has short sentences, and none of the words that the project has replaced.

A new corpus is one more entry of ``CORPORA``: a name, its texts, and the limits that they keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from expecttest import assert_expected_inline

from gradconform import contract
from gradconform.cli.arguments import COMMANDS, parser
from gradconform.contract.explanations import LETTERS
from gradconform.contract.space.dimensions import CONSTRAINTS, DIMENSIONS
from gradconform.contract.space.uncovered import UNCOVERED
from gradconform.diagnosis.cause import Mistake
from gradconform.reading.report import schema
from gradconform.reference.faults import FAULTS
from gradconform.reference.faults.training_step import STEP_FAULTS
from gradconform.reference.variants import tensor_ranks, training_step  # noqa: F401 (each registers its variants)
from gradconform.reference.variants.step_registry import STEP_VARIANTS
from gradconform.trial.modes import MODES
from gradconform.trial.trial import RECEIVED, WEIGHTS

from .plain_words import figures, listed, prose, sentences, words

DOCS = Path(__file__).parents[2] / "docs"

CHECKS = contract.checks_of().values()


@dataclass(frozen=True, slots=True)
class Corpus:
    """Texts that are read in one place; ``most`` limits the words of each of their sentences, ``mean`` the mean."""

    texts: Callable[[], Iterable[str]]
    most: int = 25
    mean: float = 18


def space() -> list[str]:
    """Return every text of the page of the space that stands in a table."""
    dimensions = {one.name: one for some in DIMENSIONS.values() for one in some}.values()
    values = [value.phrase for one in dimensions for value in one.values]
    features = [text for one in UNCOVERED for text in (one.what, one.because)]
    return [*(one.description for one in dimensions), *values, *(one.because for one in CONSTRAINTS), *features]


def descriptions(values: object) -> Iterator[str]:
    """Yield every description in a JSON schema."""
    inner = values.values() if isinstance(values, dict) else values if isinstance(values, list) else ()
    for value in inner:
        yield from descriptions(value)
    if isinstance(values, dict) and isinstance(values.get("description"), str):
        yield values["description"]


def options() -> list[str]:
    """Return the help of every argument of every command."""
    commands = next(one.choices for one in parser()._actions if one.choices)
    assert commands is not None
    assert set(commands) == set(COMMANDS)
    return [one.help for name in commands for one in commands[name]._actions if one.help]


PAGES = [
    *(DOCS.parent / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"))
]
PAGES += sorted(DOCS.glob("*.md"))

CORPORA = {
    "requirements of the contract": Corpus(lambda: [check.requirement for check in CHECKS]),
    "reasons of the contract": Corpus(lambda: {check.why for check in CHECKS}),
    "mistakes of the contract": Corpus(lambda: {f"Catches {check.catches}" for check in CHECKS}),
    "stages of the contract": Corpus(
        lambda: {case.special for check in CHECKS for trial in check.trials for case in trial.stages}, most=12
    ),
    "programs and settings": Corpus(
        lambda: [*LETTERS.values(), *MODES.values(), *RECEIVED.values(), *WEIGHTS.values()], most=15
    ),
    "values of the space": Corpus(space),
    "causes": Corpus(lambda: [one.value for one in Mistake], most=20),
    "faults": Corpus(lambda: [text for one in FAULTS.values() for text in (one.idea, one.elsewhere) if text]),
    "faults and right variants of training steps": Corpus(
        lambda: [one.what for one in (*STEP_FAULTS.values(), *STEP_VARIANTS.values())], most=20
    ),
    "fields of a report": Corpus(lambda: descriptions(schema())),
    "help of options": Corpus(options),
    **{page.name: Corpus(lambda page=page: prose(page.read_text(encoding="utf-8"))) for page in PAGES},  # type: ignore[misc] # the default is this page
}

EACH = pytest.mark.parametrize("corpus", CORPORA.values(), ids=CORPORA)


@EACH
def test_no_sentence_is_too_long(corpus: Corpus, record_property: Callable[[str, object], None]) -> None:
    found = figures(corpus.texts())
    record_property("sentences", found.sentences)
    record_property("words per sentence", round(found.mean, 1))
    assert found.sentences
    assert found.most <= corpus.most, f"{found.most} words, expected {corpus.most} at most: {found.longest}"
    assert found.mean <= corpus.mean


@EACH
def test_no_listed_word_is_used(corpus: Corpus) -> None:
    used = {text: dict(found) for text in corpus.texts() if (found := listed(text))}
    assert used == {}, "each of these words has a plain one, which LISTED names"


def test_each_part_of_a_clause_is_one_sentence() -> None:
    parts = {part for check in CHECKS for part in (check.why, check.catches, check.template)}
    assert [part for part in parts if len(list(sentences(part))) != 1] == []


def test_a_requirement_names_one_level_and_ends_with_a_full_stop() -> None:
    assert [check.id for check in CHECKS if check.requirement.count(check.level) != 1] == []
    assert [check.id for check in CHECKS if not check.requirement.endswith(".")] == []


def test_words_are_counted_as_a_reader_counts_them() -> None:
    counted = {one: words(one) for one in sentences("W MUST be right in F0 I0 finish W0 on `a b`. See docs/space.md.")}
    assert counted == {"W MUST be right in PROGRAM on CODE.": 8, "See docs/space.md.": 2}
    assert [words(item) for item in sentences("It is right, with: three steps; a loss.")] == [4, 2, 2]
    assert list(sentences("It is right; it is fast.")) == ["It is right; it is fast."]


def test_listed_words_are_found_as_whole_words_outside_code() -> None:
    assert list(listed("The tests told it apart.")) == [r"tell(?:s|ing)?|told", r"apart(?: from)?"]
    assert not listed("The stage tied-apart leaves `told` and tied-apart-reordered.")


def test_prose_excludes_tables_code_and_comments() -> None:
    page = "# A title\n\n<!-- no -->\nOne\nsentence. Two.\n\n    code\n\n- An item\n  of two lines.\n- B\n\n| a |\n"
    assert_expected_inline(
        "\n".join(prose(page)),
        """\
A title
One sentence. Two.
An item of two lines.
B""",
    )
