"""Signed bundles, with keys that ssh-keygen makes: who signed is told, and all else is refused in words."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gradconform.bundle import signing
from gradconform.cli import main
from gradconform.results import Report

ADA = "ada@example.org"
TIGHT = "a\x1b[2J\u202e##[error]"


@pytest.fixture(autouse=True)
def _ssh_keygen() -> None:
    """The program of this machine, on which all of this rests."""
    if shutil.which("ssh-keygen") is None:
        reason = "ssh-keygen is not installed (Debian: apt-get install openssh-client)"
        if os.environ.get("CI"):
            pytest.fail(f"{reason}; .ci/run installs it where it is root")
        pytest.skip(reason)


def key(name: str, passphrase: str = "") -> str:
    """Make a key, and return its public half as a line of signers has it."""
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "", "-f", name]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    return Path(f"{name}.pub").read_text(encoding="utf-8").strip()


@pytest.fixture
def signed(whole: Report) -> None:
    """A bundle that the key ``key`` has signed, and a list of signers that has it."""
    Path("report.json").write_text(whole.to_json(), encoding="utf-8")
    Path("signers").write_text(f"# who may\n\n{ADA} {key('key')}\n", encoding="utf-8")
    assert main(["bundle", "report.json", "-o", "bundle.zip", "--sign", "key"]) == 0


def verified(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Return exit code and all that is printed."""
    capsys.readouterr()
    code = main(["verify", "bundle.zip", *words])
    return code, "".join(capsys.readouterr())


@pytest.mark.usefixtures("signed")
def test_the_signer_of_a_bundle_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bundle", "report.json", "-o", "bundle.zip", "--sign", "key"]) == 0
    assert capsys.readouterr().out.startswith("bundle.zip and bundle.zip.sig: mine 1.0 (SHA-256 ")
    assert Path("bundle.zip.sig").read_text(encoding="utf-8").startswith("-----BEGIN SSH SIGNATURE-----")
    code, told = verified(capsys, "--signers", "signers")
    assert (code, told.partition(" (SHA")[0]) == (0, f"VALID, signed by {ADA}: mine 1.0")


@pytest.mark.usefixtures("signed")
def test_a_signature_that_was_not_checked_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    code, told = verified(capsys)
    assert code == 0
    assert told.startswith("VALID, signed, but the signature was not checked (--signers FILE checks it): mine 1.0")


@pytest.mark.usefixtures("signed")
def test_writing_a_new_unsigned_bundle_removes_the_old_signature(
    whole: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bundle", "report.json", "-o", "bundle.zip"]) == 0
    assert verified(capsys, "--signers", "signers")[0] == 0  # it is the same bundle, so the signature stays
    newer = replace(whole, target={**whole.target, "version": "1.1"})
    Path("report.json").write_text(newer.to_json(), encoding="utf-8")
    assert main(["bundle", "report.json", "-o", "bundle.zip"]) == 0
    said = "removed bundle.zip.sig: it signed the earlier bundle.zip; --sign KEY signs this bundle"
    assert capsys.readouterr().out.splitlines()[-1] == said
    assert not Path("bundle.zip.sig").exists()
    assert verified(capsys)[1].startswith("VALID, unsigned (its author is unknown): mine 1.1")


@pytest.mark.usefixtures("signed")
def test_an_old_signature_that_cannot_be_removed_is_reported(whole: Report, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bundle.zip.sig").unlink()
    Path("bundle.zip.sig").mkdir()
    newer = replace(whole, target={**whole.target, "version": "1.1"})
    Path("report.json").write_text(newer.to_json(), encoding="utf-8")
    assert main(["bundle", "report.json", "-o", "bundle.zip"]) == 4
    assert "cannot remove bundle.zip.sig: Is a directory" in capsys.readouterr().err


def change_the_signature() -> None:
    path = Path("bundle.zip.sig")
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[-2] = lines[-2][::-1]
    path.write_text("\n".join(lines), encoding="utf-8")


def sign_by(use: str, file: str, line: str = "eve {public}") -> Callable[[], None]:
    """Return what signs the bundle with another key, which signers may name."""

    def change() -> None:
        public = key("other")
        words = ["ssh-keygen", "-Y", "sign", "-f", "other", "-n", use]
        done = subprocess.run(words, check=True, input=Path(file).read_bytes(), capture_output=True)
        Path("bundle.zip.sig").write_bytes(done.stdout)
        Path("signers").write_text(line.format(public=public), encoding="utf-8")

    return change


AGAINST: dict[str, tuple[Callable[[], object], str]] = {
    "gone": (lambda: Path("bundle.zip.sig").unlink(), "'bundle.zip.sig' does not exist; 'gradconform bundle"),
    "no signature": (lambda: Path("bundle.zip.sig").write_bytes(b"\x1b[2J"), "is not a signature of this bundle: "),
    "changed": (change_the_signature, "is not a signature of this bundle: "),
    "of another file": (sign_by("gradconform", "report.json"), "is not a signature of this bundle: "),
    "for git": (sign_by("git", "bundle.zip"), "is not a signature of this bundle: "),
    "unknown": (lambda: Path("signers").write_text(f"{ADA} {key('other')}"), "a key that 'signers' does not list: "),
    "nobody": (lambda: Path("signers").write_bytes(b"# none\n"), "a key that 'signers' does not list: "),
    "for git alone": (
        sign_by("gradconform", "bundle.zip", 'eve namespaces="git" {public}'),
        "was made with a key that 'signers' ",
    ),
    "expired": (
        sign_by("gradconform", "bundle.zip", 'eve valid-before="20200101" {public}'),
        "a key that 'signers' does not list: ",
    ),
    "for all but one": (
        sign_by("gradconform", "bundle.zip", "!eve {public}"), "was made with a key that 'signers' "
    ),
}  # fmt: skip


@pytest.mark.usefixtures("signed")
@pytest.mark.parametrize("case", AGAINST)
def test_a_bundle_not_signed_by_a_listed_signer_is_not_valid(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    change, reason = AGAINST[case]
    change()
    code, told = verified(capsys, "--signers", "signers")
    assert code == 1
    assert told.startswith("NOT VALID: 1 reason\n  - 'bundle.zip.sig' ")
    assert reason in told
    assert told.count("\n") == 2
    assert "\x1b" not in told


@pytest.mark.usefixtures("signed")
def test_a_bundle_changed_after_signing_is_reported_with_every_reason(capsys: pytest.CaptureFixture[str]) -> None:
    held = bytearray(Path("bundle.zip").read_bytes())
    held[held.index(b"PK\x01\x02") + 12] ^= 1  # the time of a file, of which the bundle makes nothing
    Path("bundle.zip").write_bytes(held)
    assert verified(capsys)[0] == 0
    code, told = verified(capsys, "--signers", "signers", "--target", "signers")
    assert (code, told.splitlines()[0]) == (1, "NOT VALID: 2 reasons")
    assert "'bundle.zip.sig' is not a signature of this bundle: " in told


@pytest.mark.usefixtures("signed")
def test_signer_names_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    public = Path("key.pub").read_text(encoding="utf-8")
    Path("signers").write_text(f'"!eve,{TIGHT} of b" {public}', encoding="utf-8")
    code, told = verified(capsys, "--signers", "signers")
    assert (code, told.partition(": mine")[0]) == (0, r"VALID, signed by a\x1b[2J\u202e\x23#[error] of b")


UNUSABLE: dict[str, tuple[Callable[[], object], str]] = {
    "gone": (lambda: Path("signers").unlink(), "--signers 'signers': cannot read the file: No such file or"),
    "folder": (lambda: Path("signers").replace("a") and Path("signers").mkdir(), "--signers 'signers': cannot read"),
    "malformed": (
        lambda: Path("signers").write_text("# a\nada@example.org ssh-ed25519\n"),
        "--signers 'signers': line 2 has no public key; expected lines such as 'ada@example.org ssh-ed25519 AAAA...'",
    ),
    "binary": (lambda: Path("signers").write_bytes(bytes(99)), "--signers 'signers': line 1 has no public key"),
    "a key": (lambda: Path("key").replace("signers"), "--signers 'signers': line 1 has no public key"),
    "signature": (
        lambda: (Path("bundle.zip.sig").replace("b"), os.mkfifo("bundle.zip.sig")),
        "the signature 'bundle.zip.sig': cannot read the file: not a regular file; expected a file that",
    ),
}  # fmt: skip


@pytest.mark.usefixtures("signed")
@pytest.mark.parametrize("case", UNUSABLE)
def test_an_unusable_file_is_named_with_the_expected_content(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    change, told = UNUSABLE[case]
    change()
    code, out = verified(capsys, "--signers", "signers")
    assert code == 2
    assert out.startswith(f"gradconform: {told}")


WRONG_KEYS: dict[str, tuple[Callable[[], object], str]] = {
    "gone": (lambda: None, "--sign 'mine': cannot read the file: No such file or directory; expected a private "),
    "folder": (lambda: Path("mine").mkdir(), "--sign 'mine': cannot read the file: Is a directory; expected a private"),
    "pipe": (lambda: os.mkfifo("mine"), "--sign 'mine': cannot read the file: not a regular file; expected a private"),
    "no key": (lambda: Path("mine").write_bytes(b"\x1b[2J"), "--sign 'mine': ssh-keygen did not sign with it ("),
    "locked": (lambda: key("mine", "secret"), "--sign 'mine': ssh-keygen did not sign with it ("),
    "read by all": (lambda: (key("mine"), Path("mine").chmod(0o644)), "--sign 'mine': ssh-keygen did not sign with "),
    "no place": (lambda: (key("mine"), Path("bundle.zip.sig").mkdir()), "--sign 'bundle.zip.sig' is a folder; "),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_KEYS)
def test_a_key_that_cannot_sign_is_reported_and_nothing_is_written(
    whole: Report, case: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    Path("report.json").write_text(whole.to_json(), encoding="utf-8")
    change, told = WRONG_KEYS[case]
    change()
    before = sorted(Path.cwd().rglob("*"))
    assert main(["bundle", "report.json", "-o", "bundle.zip", "--sign", "mine"]) == 2
    out = "".join(capsys.readouterr())
    assert out.startswith(f"gradconform: {told}")
    assert "\x1b" not in out
    assert sorted(Path.cwd().rglob("*")) == before


PROGRAMS: dict[str, tuple[str | None, str]] = {
    "gone": (
        None,
        "ssh-keygen, which signs and verifies bundles, is not on the PATH; install OpenSSH 8.2 or later",
    ),
    "old": (
        "echo 'unknown option -- Y' >&2; exit 1",
        "ended with exit code 1: unknown option -- Y; install Op",
    ),
    "killed": ("kill -9 $$", "ended with SIGKILL: "),
    "hangs": ("exec sleep 60", "did not end within 0.5 s and was stopped; run it yourself"),
}


@pytest.mark.usefixtures("signed")
@pytest.mark.parametrize("case", PROGRAMS)
def test_a_failing_ssh_keygen_is_an_environment_error(
    case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script, told = PROGRAMS[case]
    monkeypatch.setattr(signing, "_SECONDS", 0.5 if case == "hangs" else 60)
    folder = Path("bin").absolute()
    folder.mkdir()
    if script is None:
        monkeypatch.setenv("PATH", str(folder))
    else:
        (folder / "ssh-keygen").write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (folder / "ssh-keygen").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    code, out = verified(capsys, "--signers", "signers")
    assert (code, told in out) == (4, True), out
    before = Path("bundle.zip").read_bytes(), Path("bundle.zip.sig").read_bytes()
    assert main(["bundle", "report.json", "-o", "bundle.zip", "--sign", "key"]) == 4
    assert told in capsys.readouterr().err
    assert (Path("bundle.zip").read_bytes(), Path("bundle.zip.sig").read_bytes()) == before


@pytest.mark.usefixtures("signed")
def test_a_missing_temporary_folder_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "none")
    code, told = verified(capsys, "--signers", "signers")
    assert code == 4
    assert told.startswith("gradconform: cannot write a temporary file (")


@pytest.mark.usefixtures("signed")
def test_a_bundle_and_its_signature_are_replaced_together_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bundle.zip").write_bytes(b"older")
    before = {path: path.read_bytes() for path in Path.cwd().iterdir()}

    def full(path: Path, _: int) -> None:
        if path.name.startswith(".bundle.zip.sig."):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "chmod", full)
    key("other")
    assert main(["bundle", "report.json", "-o", "bundle.zip", "--sign", "other"]) == 4
    assert "No space left on device" in capsys.readouterr().err
    after = {path: path.read_bytes() for path in Path.cwd().iterdir() if not path.name.startswith("other")}
    assert after == before
