"""Signatures of bundles, made and checked by ``ssh-keygen``, which is there wherever ssh is.

A signature is a file of its own beside the bundle, and is of the bundle's bytes. What ``ssh-keygen`` ends with decides;
what it says is shown, and read by nobody but a person.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from gradconform.exits import EXIT_ENVIRONMENT, UsageError
from gradconform.files.user_files import content, opened
from gradconform.process.worker import exit_in_words

from .archive import on_disk

#: A signature that was made for something else, such as a commit of git, is none of a bundle.
NAMESPACE = "gradconform"

_LARGEST = 2**20
#: For a whole call without a person; one who is asked for a passphrase or to touch a key has longer.
_SECONDS, _SECONDS_OF_A_PERSON = 60, 600
#: What ``ssh-keygen`` ends with where the answer is no; with anything else it has not answered.
_REFUSED = 255
_SAID = 500

_SIGNERS, _SIGNATURE = "signers", "signature"
_SIGNED = ("-n", NAMESPACE, "-s", _SIGNATURE)

_ENTRY = "lines such as 'ada@example.org ssh-ed25519 AAAA...' (ALLOWED SIGNERS in the manual of ssh-keygen)"
#: A line without a public key, which in base64 begins with the length of the name of its kind, and no comment.
_NO_ENTRY = re.compile(rb"\s*[^\s#](?!.*\sAAAA)")


class SigningError(UsageError):
    """A key or a list of signers that ``ssh-keygen`` can do nothing with."""


class NoSshKeygenError(UsageError):
    """An ``ssh-keygen`` that is not there, does not know signatures, or gives no answer."""

    exit_code = EXIT_ENVIRONMENT


class NotSignedError(Exception):
    """A bundle that none of the signers has signed; the text is the reason."""


def signature_path(bundle: str) -> str:
    """Return where the signature of the bundle at this path lies."""
    return f"{bundle}.sig"


def is_signed(bundle: str) -> bool:
    """Tell whether a signature lies beside the bundle at this path, whosever it is."""
    return os.path.lexists(signature_path(bundle))


def signature(held: bytes, key: str) -> bytes:
    """Return the signature of a bundle's bytes by the private key in the file ``key``.

    A passphrase is asked for where a person is at a terminal, and nowhere else. Raises :class:`SigningError` and
    :class:`NoSshKeygenError`.
    """
    try:
        opened(key).close()  # ssh-keygen waits for a pipe that nobody writes to
    except OSError as error:
        msg = f"--sign {key!r}: cannot read the file: {error.strerror}; expected a private ssh key"
        raise SigningError(msg) from error
    done = _ssh_keygen(["sign", "-f", str(Path(key).absolute()), "-n", NAMESPACE], held, asks=_person_at_terminal())
    if done.returncode != 0:
        msg = (
            f"--sign {key!r}: ssh-keygen did not sign with it ({_described(done)}); expected a private ssh key. "
            "For a key with a passphrase, use a terminal, or add it to ssh-agent with ssh-add"
        )
        raise SigningError(msg)
    return done.stdout


def signer(held: bytes, bundle: str, signers: str) -> str:
    """Return the name of who has signed a bundle, as the allowed-signers file ``signers`` has it.

    ``held`` is what the bundle's file holds. Raises :class:`NotSignedError` where nobody in that file has signed it,
    :class:`SigningError` for a file that cannot be used, and :class:`NoSshKeygenError`.
    """
    listed = _content(signers, "--signers", _ENTRY)
    path = signature_path(bundle)
    if not is_signed(bundle):
        msg = f"{path!r} does not exist; 'gradconform bundle --sign' writes this signature next to a bundle"
        raise NotSignedError(msg)
    given = _content(path, "the signature", "a file that 'gradconform bundle --sign' wrote")
    with on_disk({_SIGNERS: listed, _SIGNATURE: given}) as folder:
        done = _ssh_keygen(["check-novalidate", *_SIGNED], held, folder)
        if done.returncode != 0:
            msg = f"{path!r} is not a signature of this bundle: {_described(done)}"
            raise NotSignedError(msg)
        done = _ssh_keygen(["find-principals", "-s", _SIGNATURE, "-f", _SIGNERS], b"", folder)
        if done.returncode != 0:
            _refuse_malformed(signers, listed)
            msg = f"{path!r} was made with a key that {signers!r} does not list: {_described(done)}"
            raise NotSignedError(msg)
        for name in _names(done.stdout):
            done = _ssh_keygen(["verify", "-I", name, "-f", _SIGNERS, *_SIGNED], held, folder)
            if done.returncode == 0:
                return name
    msg = f"{path!r} was made with a key that {signers!r} does not allow for bundles: {_described(done)}"
    raise NotSignedError(msg)


def _names(found: bytes) -> list[str]:
    """Return the names of a line of signers; one after ! is of somebody whom it is not for."""
    return [name for name in os.fsdecode(found).split("\n") if name and not name.startswith("!")]


def _content(path: str, what: str, expected: str) -> bytes:
    try:
        return content(path, _LARGEST)
    except OSError as error:
        msg = f"{what} {path!r}: cannot read the file: {error.strerror}; expected {expected}"
        raise SigningError(msg) from error


def _refuse_malformed(signers: str, listed: bytes) -> None:
    for number, line in enumerate(listed.splitlines(), start=1):
        if _NO_ENTRY.match(line):
            msg = f"--signers {signers!r}: line {number} has no public key; expected {_ENTRY}"
            raise SigningError(msg)


def _person_at_terminal() -> bool:
    return os.isatty(0) and not os.environ.get("CI")


def _ssh_keygen(
    words: Sequence[str], given: bytes, folder: Path | None = None, *, asks: bool = False
) -> subprocess.CompletedProcess[bytes]:
    """Run ``ssh-keygen -Y`` in ``folder`` on ``given``; one that ``asks`` keeps the terminal, any other has none."""
    program = shutil.which("ssh-keygen")
    if program is None:
        msg = "ssh-keygen, which signs and verifies bundles, is not on the PATH; install OpenSSH 8.2 or later"
        raise NoSshKeygenError(msg)
    seconds = _SECONDS_OF_A_PERSON if asks else _SECONDS
    try:
        done = subprocess.run(  # noqa: S603 (no shell, and each word is one of ours, a path or a name)
            [program, "-Y", *words],
            input=given,
            capture_output=True,
            check=False,
            cwd=folder,
            env={**os.environ, "SSH_ASKPASS_REQUIRE": "never"},
            start_new_session=not asks,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        msg = f"{program} -Y {words[0]} did not end within {seconds} s and was stopped; run it by hand"
        raise NoSshKeygenError(msg) from error
    except (OSError, ValueError) as error:
        msg = f"cannot run {program} -Y {words[0]}: {error}; install OpenSSH 8.2 or later"
        raise NoSshKeygenError(msg) from error
    if done.returncode not in {0, _REFUSED}:
        ended = exit_in_words(done.returncode)
        msg = f"{program} -Y {words[0]} ended with {ended}: {_described(done)}; install OpenSSH 8.2 or later"
        raise NoSshKeygenError(msg)
    return done


def _described(done: subprocess.CompletedProcess[bytes]) -> str:
    """Return what ``ssh-keygen`` complains of, as one line."""
    lines = done.stderr.decode(errors="replace").splitlines()
    return "; ".join(line.strip() for line in lines if line.strip())[:_SAID] or "ssh-keygen gave no reason"
