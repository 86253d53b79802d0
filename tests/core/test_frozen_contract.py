"""The contract's versions as files: the checks of each are what its file says, and a released one changes no more."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from hashlib import sha256
from typing import Any

import pytest
from expecttest import assert_expected_inline

from gradconform.contract import areas, checks_of, freezing, frozen
from gradconform.contract.check import Check
from gradconform.contract.explanation_file import explained, explanations_of
from gradconform.contract.explanations import explanations
from gradconform.contract.freezing import as_it_is, differences, freeze, traits_of_random_stages
from gradconform.fixtures.digests import digest, stage_digest
from gradconform.fixtures.programs import split_deferred
from gradconform.fixtures.random_stages import TRAITS
from gradconform.fixtures.stages import ZOO
from gradconform.user_input.values import SelectionError
from gradconform.version import CONTRACT_VERSION

ContractOf = Callable[..., None]

#: Two checks on three stages, to be changed.
GRADIENTS, TWO_STAGES = (areas.CHECKS[name] for name in ("full.gradients.mlp", "accumulate.two_stages.split"))


#: The digest of a stage, made once: the versions have nearly all stages in common.
DIGEST = cache(stage_digest)


@pytest.mark.parametrize("version", frozen.versions())
def test_the_checks_of_a_version_match_its_file(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freezing, "stage_digest", DIGEST)
    held = frozen.frozen(version)
    assert held is not None, f"contract {version} has no file; run `gradconform contract --contract {version} --freeze`"
    told = "\n".join(differences(held, as_it_is(version)))
    assert not told, f"contract {version} is not what its file says; run `gradconform contract --freeze`:\n{told}"


#: The file of each version that was released, by its SHA-256: a line is added with a release, and none is ever changed.
RELEASED = {
    "1.0": "8893a2812ccfbf7f47d7ead740bb19314be02226bf8e103fda64a27898ca8f80",
    "1.1": "89c8611dbefe2c7909b38fc9a3fcb7857b9c273dfc3a4a1d454e640bf064d6c5",
    "1.2": "8be6f4a155b045909e918d1ede80aa1c2a2d108c28e9a38bdefd881730ae396b",
    "1.3": "228ef4f2eac4448dd8537625f40d0afa8ec1d1d5c76fdaaf0f79e57eddac2e1d",
}


def test_the_file_of_a_released_version_is_unchanged_byte_for_byte() -> None:
    released = {version for version in frozen.versions() if (held := frozen.frozen(version)) and held.released}
    found = {version: sha256(frozen.file_of(version).read_bytes()).hexdigest() for version in released}
    assert found == RELEASED, "a released version changes no more: what is new has a later `since` (docs/release.md)"


def test_the_default_contract_is_released() -> None:
    assert CONTRACT_VERSION in RELEASED


def test_contract_1_0_has_1579_checks_and_1296_without_profile_full() -> None:
    held = frozen.frozen("1.0")
    assert held is not None
    assert len(held.checks) == 1579
    assert sum(check.profile != "full" for check in held.checks.values()) == 1296
    assert list(held.checks) == list(checks_of("1.0"))


def test_contract_1_1_has_1590_checks_and_1300_without_profile_full() -> None:
    held = frozen.frozen("1.1")
    assert held is not None
    assert len(held.checks) == 1590
    assert sum(check.profile != "full" for check in held.checks.values()) == 1300
    assert list(held.checks) == list(checks_of("1.1"))


def test_contract_1_2_has_the_checks_of_1_1_and_another_profile_quick() -> None:
    held, before = frozen.frozen("1.2"), frozen.frozen("1.1")
    assert held is not None
    assert before is not None
    assert held.stages == before.stages
    wide = {name: replace(one, profile="standard") for name, one in held.checks.items() if one.profile == "quick"}
    assert len(wide) == 150
    old = {name: replace(one, profile="standard") for name, one in before.checks.items() if one.profile == "quick"}
    assert len(old) == 138
    assert {**held.checks, **wide, **{n: replace(held.checks[n], profile="standard") for n in old}} == {
        **before.checks, **old, **{n: replace(before.checks[n], profile="standard") for n in wide},
    }  # fmt: skip


def test_contract_1_3_has_1596_checks_and_1300_without_profile_full() -> None:
    held, before = frozen.frozen("1.3"), frozen.frozen("1.2")
    assert held is not None
    assert before is not None
    assert len(held.checks) == 1596
    assert sum(check.profile != "full" for check in held.checks.values()) == 1300
    assert sum(check.profile == "quick" for check in held.checks.values()) == 150
    assert {*held.checks} - {*before.checks} == {
        *(f"full.gradients.{stage}" for stage in ("frozen-norm", "layer-arguments", "rows-in-place")),
        *(f"split.gradients.{stage}" for stage in ("frozen-norm", "layer-arguments", "rows-in-place")),
        *(f"state.before_backward.{case}" for case in ("argument", "data", "frozen", "output", "weight")),
    }
    assert {*before.checks} - {*held.checks} == {
        f"state.between.{case}-full" for case in ("argument", "data", "frozen", "output", "weight")
    }
    assert {name for name, one in held.checks.items() if one.profile == "full" and name in before.checks} - {
        name for name, one in before.checks.items() if one.profile == "full"
    } == {
        f"{way}.gradients.{stage}"
        for way in ("full", "split")
        for stage in ("group-norm", "mlp-no-bias", "split-uneven")
    }


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
def test_a_check_has_the_profile_that_the_file_of_its_version_says(version: str) -> None:
    held = frozen.frozen(version)
    assert held is not None
    assert {name: one.profile for name, one in checks_of(version).items()} == {
        name: one.profile for name, one in held.checks.items()
    }
    moved = "full.gradients.group-norm" if version == "1.2" else "split.loss.two-inputs"
    assert checks_of(version)[moved].profile != checks_of()[moved].profile


#: What contract 1.0 tests, from its first freeze on: a digest of everything but sentences.
TESTED = "97ef6d6c62797377"


def test_contract_1_0_has_the_ids_stages_and_programs_of_its_first_freeze() -> None:
    held = frozen.frozen("1.0")
    assert held is not None
    checks = [{**asdict(check), "requirement": ""} for check in held.checks.values()]
    assert digest(json.dumps([checks, held.stages])) == TESTED


def test_a_contract_file_has_one_line_per_check_and_stage_and_is_read_back_unchanged() -> None:
    held = as_it_is("1.0")
    assert frozen.frozen("1.0") == held
    lines = held.text().splitlines()
    assert len(lines) == len(held.checks) + len(held.stages) + 8
    assert max(map(len, lines)) < 2000


def test_the_stored_traits_of_random_stages_match_the_measured_ones() -> None:
    told = "run `gradconform contract --cover`"
    assert TRAITS.read_text(encoding="utf-8") == traits_of_random_stages(), told


@pytest.mark.parametrize("version", frozen.versions())
def test_the_explanations_of_a_version_match_its_file(version: str) -> None:
    text = explanations(checks_of(version)).text()
    told = f"contract {version}: run `gradconform contract --contract {version} --freeze`"
    assert explanations_of(version).read_text(encoding="utf-8") == text, told
    assert explained(version).text() == text


def test_the_lists_of_a_version_are_read_without_torch() -> None:
    code = "import sys\nfrom gradconform.contract.frozen import frozen\nassert len(frozen('1.0').checks) == 1579\n"
    code += "print(*sorted({'torch', 'numpy', 'jsonschema', 'gradconform.contract.check'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_a_new_stage_of_the_zoo_is_not_added_to_a_version() -> None:
    code = "from dataclasses import replace\nfrom gradconform.contract import checks_of\n"
    code += "from gradconform.fixtures.stages import ZOO\nZOO['quite-new'] = replace(ZOO['mlp'], name='quite-new')\n"
    code += "print(len(checks_of('1.0')), any('quite-new' in name for name in checks_of()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1579 False\n"


def changed(**changes: Any) -> str:
    """Say what is told of a version in which one of two checks has changed, or is another."""
    before = as_it_is("1.3")
    areas.CHECKS[GRADIENTS.id] = replace(areas.CHECKS[GRADIENTS.id], **changes)
    checks_of.cache_clear()
    return "\n".join(differences(before, as_it_is("1.3")))


@pytest.fixture
def two(contract_of: ContractOf) -> None:
    contract_of([TWO_STAGES, GRADIENTS])


@pytest.mark.usefixtures("two")
def test_changes_of_a_check_are_reported_by_field_name() -> None:
    (trial,) = GRADIENTS.trials
    told = changed(
        profile="full",
        requirement="B MUST be right.",
        needs=frozenset({"full"}),
        trials=(replace(trial, program=split_deferred(2)),),
    )
    assert_expected_inline(
        told,
        """\
changed: full.gradients.mlp: profile was 'quick', is 'full'
changed: full.gradients.mlp: requirement was "B MUST return plain autograd's input gradients and accumulate its parameter gradients, on stage mlp (an MLP with biases).", is 'B MUST be right.'
changed: full.gradients.mlp: needs was (full, mid_stage), is (full)
changed: full.gradients.mlp: programs was (F0 B0 F1 B1), is (F0 I0 F1 I1 W0 W1)
changed: full.gradients.mlp: trials was (de91e3f93c4f0792), is (0e0538f9167a0757)""",  # noqa: E501 (as it is shown)
    )


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(
    "fed",
    [
        {"loss": True}, {"output_grads": "none:0"}, {"prior_grads": True}, {"same_args": True}, {"repeats": 2},
        {"watch": frozenset({"state"})}, {"retain_graph": True},
    ],
    ids=str,
)  # fmt: skip
def test_a_trial_with_other_inputs_or_watches_is_a_change(fed: dict[str, Any]) -> None:
    told = changed(trials=(replace(GRADIENTS.trials[0], **fed),))
    assert told.startswith("changed: full.gradients.mlp: trials was (de91e3f93c4f0792), is (")
    assert len(told.splitlines()) == 1


@pytest.mark.usefixtures("two")
def test_added_and_removed_checks_are_reported_with_their_stages() -> None:
    before = as_it_is("1.3")
    areas.CHECKS.pop(TWO_STAGES.id)
    areas.CHECKS["full.gradients.lstm"] = replace(GRADIENTS, id="full.gradients.lstm", trials=())
    checks_of.cache_clear()
    assert_expected_inline(
        "\n".join(differences(before, as_it_is("1.3"))),
        """\
added: full.gradients.lstm
gone: accumulate.two_stages.split
gone: the stage two-outputs""",
    )


@pytest.mark.usefixtures("two")
def test_a_stage_built_differently_is_reported_as_changed() -> None:
    other = replace(ZOO["mlp"], build=ZOO["mlp-no-bias"].build)
    told = changed(trials=(replace(GRADIENTS.trials[0], stages=(other,)),))
    assert told == ("changed: the stage mlp: its arguments, traits, source or first values are not those it had")


#: Contract 0.9 with one check that contract 1.3 has no more, and one that it still has; 1.3 has one of its own.
OF_TWO_VERSIONS = (
    replace(GRADIENTS, id="full.gradients.old", since="0.9", until="1.3"), replace(GRADIENTS, since="0.9"), TWO_STAGES,
)  # fmt: skip


@pytest.fixture
def next_version(contract_of: ContractOf) -> None:
    contract_of(OF_TWO_VERSIONS)


@pytest.mark.usefixtures("next_version")
def test_a_version_has_the_checks_added_by_then_and_not_yet_removed() -> None:
    assert frozen.versions() == ("0.9", "1.3")
    assert sorted(checks_of("0.9")) == ["full.gradients.mlp", "full.gradients.old"]
    assert sorted(checks_of("1.3")) == sorted(checks_of()) == ["accumulate.two_stages.split", "full.gradients.mlp"]


@pytest.mark.usefixtures("next_version")
def test_an_unknown_version_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SelectionError, match=r"unknown contract version '1.4'; expected one of 0.9, 1.3"):
        checks_of("1.4")


def test_versions_are_ordered_by_number() -> None:
    assert frozen.older("1.9", "1.10")
    assert not frozen.older("1.1", "1.1")
    assert not frozen.older("2.0", "1.10")


@pytest.mark.usefixtures("two")
def test_a_released_version_is_never_written_again() -> None:
    held, _ = freeze("1.3", dt.date(2027, 1, 10))
    assert held.released == "2027-01-10"
    assert freeze("1.3") == (held, [])
    areas.CHECKS.pop(TWO_STAGES.id)
    checks_of.cache_clear()
    with pytest.raises(SelectionError) as raised:
        freeze("1.3")
    assert_expected_inline(
        str(raised.value),
        """\
contract 1.3 was released on 2027-01-10 and changes no more; expected its checks as they were. What is new has a later `since`, what leaves an `until`
  gone: accumulate.two_stages.split
  gone: the stage two-outputs""",  # noqa: E501 (as it is shown)
    )
    assert frozen.frozen("1.3") == held


@pytest.mark.usefixtures("two")
def test_a_check_of_a_later_version_does_not_change_a_released_version(monkeypatch: pytest.MonkeyPatch) -> None:
    freeze("1.3", dt.date(2027, 1, 10))
    later: Check = replace(GRADIENTS, id="full.gradients.later", since="1.4")
    monkeypatch.setitem(areas.CHECKS, later.id, later)
    checks_of.cache_clear()
    assert freeze("1.3")[1] == []
