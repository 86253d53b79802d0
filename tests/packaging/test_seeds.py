"""docs/seeds.md: every check that it names exists, and no row of torch's own suites is left out."""

import re
from fnmatch import fnmatchcase
from pathlib import Path

from gradconform import contract
from gradconform.fixtures.schedules import RECORDED, recorded
from gradconform.fixtures.schedules.from_torch import NAMES
from gradconform.pipeline.cases import cases_of
from gradconform.pipeline.schedule_text.checks import checks_of
from gradconform.pipeline.stage_objects.checks import CHECKS

TEXT = (Path(__file__).parents[2] / "docs" / "seeds.md").read_text()
ROWS = [[cell.strip() for cell in line.split("|")[1:3]] for line in TEXT.splitlines() if line.startswith("| test_")]


def test_every_check_that_a_row_names_exists() -> None:
    known = [*contract.checks_of(), *(case.id for case in cases_of(NAMES, ranks=2)), *(check.id for check in CHECKS)]
    known += [check.id for check in checks_of([recorded(name) for name in RECORDED])]
    named = re.findall(r"`((?:stage|schedule|schedule_text|pipeline)\.[\w.*-]+)`", TEXT)
    assert named
    for pattern in named:
        assert any(fnmatchcase(check, pattern) for check in known), pattern


def test_every_row_says_what_covers_it_or_why_nothing_does() -> None:
    assert len(ROWS) == len({test for test, _ in ROWS}) == 27
    assert all("`" in covered or covered.startswith("not covered: ") for _, covered in ROWS)
