"""Each defect that damaged files have shown, by the smallest file that shows it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gradconform.bundle.archive import unpacked
from gradconform.cli import main
from gradconform.run.options import RunOptions
from gradconform.user_input.values import SelectionError

from .damage import archive

Valid = Callable[[], dict[str, bytes]]


def test_records_without_the_options_of_the_run_cannot_be_resumed(
    valid: Valid, capsys: pytest.CaptureFixture[str]
) -> None:
    header, *others = valid()["cut.ndjson"].splitlines()
    values = json.loads(header)
    for options in (None, []):
        values["report"]["options"] = options
        if options is None:
            del values["report"]["options"]
        Path("odd.ndjson").write_bytes(b"\n".join([json.dumps(values).encode(), *others, b""]))
        assert main(["run", "--resume", "odd.ndjson"]) == 2
        assert "cannot continue 'odd.ndjson': it records no target" in capsys.readouterr().err


def test_a_report_with_unknown_options_is_shown_without_a_reproduce_command(
    valid: Valid, capsys: pytest.CaptureFixture[str]
) -> None:
    values = json.loads(valid()["failed.json"])
    values["options"]["more"] = 1
    Path("other.json").write_text(json.dumps(values))
    for name, shown in (("failed.json", True), ("other.json", False)):
        assert main(["report", name, "--markdown", "-"]) == 0
        assert ("gradconform replay" in capsys.readouterr().out) == shown
    assert main(["replay", "other.json#1"]) == 2
    told = capsys.readouterr().err
    assert "other.json: the options of the run do not fit this version of gradconform: more is unknown" in told


@pytest.mark.parametrize(
    "odd",
    [{"waivers": 5}, {"waivers": [1]}, {"shard": 5}, {"shard": [1]}, {"dtype": 3}, {"checks": {}}, {"device": [1]}],
)
def test_options_of_an_invalid_type_are_refused(odd: dict[str, object]) -> None:
    written = RunOptions(target="torch").to_json()
    assert RunOptions.from_json(written) == RunOptions(target="torch")
    with pytest.raises(ValueError, match="expected"):
        RunOptions.from_json({**written, **odd})


def test_a_path_that_is_not_text_is_refused() -> None:
    with pytest.raises(SelectionError, match="expected the path of a file, got 5"):
        RunOptions(target="torch", waivers=5)  # type: ignore[arg-type] # what is asked


def test_several_values_for_a_single_value_ini_option_are_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml('[tool.pytest.ini_options]\ngradconform_json = ["a.json"]\n')
    run = pytester.runpytest_inprocess("--collect-only")
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stderr.fnmatch_lines("ERROR: gradconform_json: expected one value, got ['a.json']")


def test_a_file_list_that_utf_8_cannot_encode_does_not_match_the_kit(
    valid: Valid, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {**unpacked("bundle.zip", valid()["bundle.zip"]), "kit.json": json.dumps({"\ud800": "0"}).encode()}
    stated = json.loads(files["statement.json"])
    stated["files"]["kit.json"] = hashlib.sha256(files["kit.json"]).hexdigest()
    files["statement.json"] = json.dumps(stated).encode()
    Path("odd.zip").write_bytes(archive([*files.items()], 0o100644))
    assert main(["verify", "odd.zip"]) == 1
    told = capsys.readouterr()
    assert "kit.json does not list the files that ran" in told.out + told.err


@pytest.mark.skipif(sys.platform != "linux", reason="other systems name no file by any bytes")
def test_a_target_name_may_be_bytes_that_are_not_utf_8(valid: Valid, capsys: pytest.CaptureFixture[str]) -> None:
    name = os.fsdecode(b"odd\xff.py")
    Path(name).write_bytes(valid()["right.py"])
    assert main(["run", name, "--no-isolation", "--checks", "full.gradients.mlp"]) == 5
    assert r"odd\udcff.py: incomplete" in capsys.readouterr().out
    assert main(["replay", "full.gradients.mlp", name, "--script", "script.py"]) == 0
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout[:5]) == (0, "right"), done.stderr


def test_an_invalid_result_in_the_records_is_refused_before_a_run_resumes(
    valid: Valid, capsys: pytest.CaptureFixture[str]
) -> None:
    held = valid()["cut.ndjson"].replace(b'"repeats_bit_equal":null', b'"repeats_bit_equal":[true]', 1)
    Path("odd.ndjson").write_bytes(held)
    assert main(["run", "--resume", "odd.ndjson", "--no-isolation"]) == 2
    said = (
        "odd.ndjson', line 3: not a valid result: repeats_bit_equal: expected boolean or null, got an array of 1 entr"
    )
    assert said in capsys.readouterr().err
    assert Path("odd.ndjson").read_bytes() == held


def test_waivers_that_are_nested_too_deep_are_refused(valid: Valid, capsys: pytest.CaptureFixture[str]) -> None:
    valid()
    Path("deep.toml").write_text(f"waiver = {'[' * 100_000}")
    assert main(["run", "wrong.py", "--list", "--waivers", "deep.toml"]) == 2
    assert "deep.toml: is nested too deep" in capsys.readouterr().err


@pytest.mark.parametrize(
    "way",
    [
        "run {}.py --list",
        "run right.py --no-isolation --checks full.gradients.mlp --json {}",
        "run right.py --no-isolation --checks full.gradients.mlp --ndjson {}",
        "run --resume {}",
        "merge part-1.json --json {}",
        "report whole.json --html {}",
        "bundle whole.json -o {}",
        "bundle whole.json -o made.zip --waivers {}",
        "replay full.gradients.mlp right.py --script {}",
        "waivers add --from failed.json --waivers {}",
        "pipeline {}.py",
    ],
)
def test_an_impossible_file_name_is_reported_without_a_traceback(
    way: str, valid: Valid, capsys: pytest.CaptureFixture[str]
) -> None:
    valid()
    assert main(way.format("n" * 3000).split()) == 2
    told = capsys.readouterr().err
    assert told.startswith("gradconform: ")
    assert "nnn" in told
    assert "Traceback" not in told


@pytest.mark.parametrize("name", ["n" * 3000, r"n\u0000n"])
def test_pytest_refuses_a_report_with_an_impossible_file_name(name: str, pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml(f'[tool.pytest.ini_options]\ngradconform_json = "{name}"\n')
    run = pytester.runpytest_inprocess("--collect-only")
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stderr.fnmatch_lines("ERROR: --gradconform-json: cannot write '*n': *")


def test_options_that_are_not_numbers_are_omitted_from_sentences(
    valid: Valid, capsys: pytest.CaptureFixture[str]
) -> None:
    values = json.loads(valid()["whole.json"])
    values["options"]["max_crashes"] = {}
    Path("odd.json").write_text(json.dumps(values))
    assert main(["report", "odd.json", "--markdown", "-"]) == 0
    assert "right.py" in capsys.readouterr().out


def test_a_contract_version_with_a_thousand_digits_is_refused(valid: Valid, capsys: pytest.CaptureFixture[str]) -> None:
    values = {**json.loads(valid()["whole.json"]), "contract": f"{'9' * 1000}.0"}
    Path("odd.json").write_text(json.dumps(values))
    for way in ("compare odd.json odd.json", "bundle odd.json -o made.zip", "report odd.json --html -"):
        assert main(way.split()) == 2
        assert "odd.json: contract: expected text of the form" in capsys.readouterr().err


def test_waivers_are_added_next_to_an_entry_whose_check_is_not_text(
    valid: Valid, capsys: pytest.CaptureFixture[str]
) -> None:
    valid()
    Path("odd.toml").write_text('[[waiver]]\ncheck = ["full.gradients.mlp"]\nverdict = "mismatch"\n')
    assert main(["waivers", "add", "--from", "failed.json", "--waivers", "odd.toml"]) == 0
    assert "added" in capsys.readouterr().out
    assert 'check = "full.gradients.' in Path("odd.toml").read_text()
