"""Each script that confirms a defect has an offer, each offer a script, and both say the same."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from gradconform.bench import upstream
from gradconform.bench.upstream import Offer, offers
from tests.imported import packages_imported

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
OFFERS = offers()
TABLES = {path.parent: tomllib.loads(path.read_text()) for path in ROOT.glob("tests/*/*/explained.toml")}
#: Without the line of torch itself, which is another release than the one that the scripts of torch are for.
XLA = (ROOT / "constraints-xla.txt").read_text(encoding="utf-8").replace("torch==", "")
PAGE = (ROOT / "docs" / "torch-versions.md").read_text(encoding="utf-8")
#: What each project's tests import beside torch and pytest.
IMPORTS = {
    "d9d": "d9d",
    "deepspeed": "deepspeed",
    "fairscale": "fairscale",
    "megatron-core": "megatron",
    "nanotron": "nanotron",
    "torch": "torch",
    "torch_xla": "torch_xla",
    "torchgpipe": "torchgpipe",
    "torchpippy": "pippy",
}


def script_of(offer: Offer) -> Path:
    return ROOT / offer.script


def test_offers_and_scripts_that_confirm_a_defect_match_one_to_one() -> None:
    scripts = {folder / script for folder, table in TABLES.items() for script in table["scripts"]}
    scripts |= set((ROOT / "tests" / "schedule_text").glob("*/*.py"))  # no table: checks name no script there
    for folder in ("torch_xla", "torch_2_13"):  # no table: devices, not targets
        scripts |= set((ROOT / "tests" / "devices" / folder).glob("*.py"))
    assert len(scripts) == len(OFFERS)
    assert scripts == {script_of(offer) for offer in OFFERS.values()}


# One test for all offers: a hundred tests that take a millisecond each take a second of pytest's own.
def test_an_offer_has_the_text_of_its_script() -> None:
    for name, offer in OFFERS.items():
        docstring = ast.get_docstring(ast.parse(script_of(offer).read_text(encoding="utf-8"))) or ""
        title, _, told = docstring.partition("\n\n")
        assert (offer.title, offer.told.strip()) == (title, told), name


def test_an_offer_names_the_version_its_script_was_written_for() -> None:
    for name, offer in OFFERS.items():
        table = TABLES.get(script_of(offer).parent, {})
        pinned = re.search(rf"^{offer.project}==(.+)$", XLA, flags=re.MULTILINE)
        assert offer.version == table.get("version", pinned[1] if pinned and not table else "2.13.0"), name


def test_an_offer_has_the_releases_and_issues_of_the_torch_releases_page() -> None:
    for name, offer in OFFERS.items():
        rows = [line.split("|") for line in PAGE.splitlines() if f"/{'/'.join(Path(offer.script).parts[-2:])})" in line]
        first, mended, reported = (cell.strip() for cell in rows[0][2:5]) if rows else ("", "", "")
        assert (", ".join(offer.since), ", ".join(offer.mended)) == (first, mended), name
        assert set(offer.issues) == {int(number) for number in re.findall(r"\[#(\d+)\]", reported)} or not rows, name
        assert rows or offer.releases == "", name


def test_an_offer_names_the_likely_place_of_the_cause_and_a_possible_fix() -> None:
    for name, offer in OFFERS.items():
        assert re.match(r"[\w/]+\.(py|cpp|yaml)\b", offer.place), name
        assert offer.mend.endswith("."), name
        assert re.match(r"[A-Z]\w+(: .+)?$", offer.fails), name
        assert offer.run in {"python", "pytest"}, name


def test_every_test_file_belongs_to_an_offer() -> None:
    found = {path.relative_to(ROOT).as_posix() for path in Path(upstream.__file__).parent.glob("*/*.py")}
    names = {f"bench/upstream/{offer.project}/test_{offer.stem}.py" for offer in OFFERS.values()}
    assert {"bench/upstream/" + "/".join(Path(path).parts[-2:]) for path in found} == names


def test_a_test_has_at_most_thirty_lines_and_imports_only_its_project() -> None:
    for name, offer in OFFERS.items():
        assert len(offer.test.splitlines()) <= 30, name
        assert packages_imported(offer.test) <= {IMPORTS[offer.project], "pytest", "torch", *sys.stdlib_module_names}, (
            name
        )
        assert "gradconform" not in offer.test, name


def test_releases_are_described_in_words() -> None:
    told = {name: OFFERS[f"torch/{name}"].releases for name in ("view-output", "bare-bias-shares-storage")}
    assert told == {
        "view-output": "since 2.6 or before",
        "bare-bias-shares-storage": "2.6 or before, mended in 2.9, and since 2.12",
    }
