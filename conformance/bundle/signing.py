"""Signatures of bundles, made and checked by ``ssh-keygen``, which is part of ssh.

A signature is a separate file next to the bundle, over the bundle's bytes. Only the exit code of ``ssh-keygen``
decides; its output is shown to the user and not read by the kit.
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
#: The limit of a call without a person, and that of one with a prompt for a passphrase or a touch.
_SECONDS, _SECONDS_OF_A_PERSON = 60, 600
#: The exit code of ``ssh-keygen`` for an invalid signature; any other code is an error.
_REFUSED = 255
_MAX_REASON = 500

_SIGNERS, _SIGNATURE = "signers", "signature"
_SIGNED = ("-n", NAMESPACE, "-s", _SIGNATURE)

_ENTRY = "lines such as 'ada@example.org ssh-ed25519 AAAA...' (ALLOWED SIGNERS in the manual of ssh-keygen)"
#: A line without a public key, which in base64 begins with the length of the name of its kind, and no comment.
_NO_ENTRY = re.compile(rb"\s*[^\s#](?!.*\sAAAA)")


class SigningError(UsageError):
    """A key or a list of signers that ``ssh-keygen`` cannot use."""


class NoSshKeygenError(UsageError):
    """``ssh-keygen`` is missing, does not support signatures, or does not end."""

    exit_code = EXIT_ENVIRONMENT


class NotSignedError(Exception):
    """A bundle without a signature of a listed signer; the text is the reason."""


def signature_path(bundle: str) -> str:
    """Return the path of the signature of the bundle at this path."""
    return f"{bundle}.sig"


def is_signed(bundle: str) -> bool:
    """Return whether the bundle at this path has a signature file, by any signer."""
    return os.path.lexists(signature_path(bundle))


def signature(held: bytes, key: str) -> bytes:
    """Return the signature of a bundle's bytes by the private key in the file ``key``.

    ``ssh-keygen`` prompts for a passphrase only at a terminal. Raises :class:`SigningError` and
    :class:`NoSshKeygenError`.
    """
    try:
        opened(key).close()  # ssh-keygen would wait for a pipe without a writer
    except OSError as error:
        msg = f"--sign {key!r}: cannot read the file: {error.strerror}; expected a private ssh key"
        raise SigningError(msg) from error
    done = _ssh_keygen(
        ["sign", "-f", str(Path(key).absolute()), "-n", NAMESPACE], held, interactive=_person_at_terminal()
    )
    if done.returncode != 0:
        msg = (
            f"--sign {key!r}: ssh-keygen did not sign with it ({_described(done)}); expected a private ssh key. "
            "For a key with a passphrase, use a terminal, or add it to ssh-agent with ssh-add"
        )
        raise SigningError(msg)
    return done.stdout


def signer(held: bytes, bundle: str, signers: str) -> str:
    """Return the name of a bundle's signer from the allowed-signers file ``signers``.

    ``held`` is the content of the bundle's file. Raises :class:`NotSignedError` if no signer in that file signed it,
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
    """Return the names of a line of signers; a name after ! is excluded."""
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
    words: Sequence[str], given: bytes, folder: Path | None = None, *, interactive: bool = False
) -> subprocess.CompletedProcess[bytes]:
    """Run ``ssh-keygen -Y`` in ``folder`` on ``given``; only with ``interactive`` it has the terminal."""
    program = shutil.which("ssh-keygen")
    if program is None:
        msg = "ssh-keygen, which signs and verifies bundles, is not on the PATH; install OpenSSH 8.2 or later"
        raise NoSshKeygenError(msg)
    seconds = _SECONDS_OF_A_PERSON if interactive else _SECONDS
    try:
        done = subprocess.run(  # noqa: S603 (no shell, and each word is one of ours, a path or a name)
            [program, "-Y", *words],
            input=given,
            capture_output=True,
            check=False,
            cwd=folder,
            env={**os.environ, "SSH_ASKPASS_REQUIRE": "never"},
            start_new_session=not interactive,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        msg = f"{program} -Y {words[0]} did not end within {seconds} s and was stopped; run it yourself"
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
    """Return the error message of ``ssh-keygen`` as one line."""
    lines = done.stderr.decode(errors="replace").splitlines()
    return "; ".join(line.strip() for line in lines if line.strip())[:_MAX_REASON] or "ssh-keygen gave no reason"
