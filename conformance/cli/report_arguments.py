"""The arguments of the commands that judge nothing: they show the contract, or read reports."""

from __future__ import annotations

import argparse
import datetime as dt
from functools import partial

from gradconform.reading.comparison import DEFAULT, NAMES, Expression
from gradconform.version import CONTRACT_VERSION
from gradconform.waivers.waiver import DEFAULT_FILE, current_day

from .parsing import (
    EXIT_CODES,
    add_command,
    add_option,
    add_output,
    add_report_files,
    add_telling,
    command,
    number_given,
    reading,
)


@command("list", "contract:list_checks")
def _list(one: argparse.ArgumentParser) -> None:
    """List the checks of the contract.

    List the checks of the contract: id, level, profile, needs, requirement. When the output is no terminal, it is
    one line per check with tabs between the columns.
    """
    one.add_argument("pattern", nargs="*", metavar="GLOB", help="only the checks whose id matches, such as 'split.*'")
    add_option(one, "profile", default="full")
    add_option(one, "checks", help="as GLOB")
    add_option(one, "contract", default=CONTRACT_VERSION)
    one.add_argument("--json", action="store_true", help="print JSON, with the reason and the programs of each check")


@command("explain", "contract:explain")
def _explain(one: argparse.ArgumentParser) -> None:
    """Explain one check: requirement, reason, stage, program, how it is judged.

    Explain one check: requirement, reason, stage and its source, program, how it is judged.
    """
    add_option(one, "contract", default=CONTRACT_VERSION)
    one.add_argument("check", metavar="ID", help="a check id, or a glob that matches a few")


@command("contract", "contract:contract")
def _contract(one: argparse.ArgumentParser) -> None:
    """Print the contract as Markdown (docs/contract.md).

    Print the contract as Markdown: the numeric rule, the verdicts and every check.
    """
    add_option(one, "contract", default=CONTRACT_VERSION)
    one.add_argument(
        "--freeze",
        nargs="?",
        default=False,
        type=_day_given,
        metavar="DATE",
        help="write the file of the version from its checks, and print what changed; with DATE, the day it is "
        "released on (such as 2027-01-10), it changes no more. For who works on the kit itself",
    )
    one.add_argument("--space", action="store_true", help="print the space of trials instead (docs/space.md)")
    one.add_argument(
        "--cover",
        action="store_true",
        help="draw the rows of the space anew, with allpairspy, measure the traits of the random stages, and write "
        "both. For who works on the kit itself",
    )


def _day_given(text: str) -> dt.date:
    """Return the day; argparse says what is wrong with another text."""
    try:
        return dt.date.fromisoformat(text)
    except ValueError as error:
        msg = f"{text!r} is no day; expected one such as 2027-01-10"
        raise argparse.ArgumentTypeError(msg) from error


@command("merge", "reports:merge_reports", epilog=EXIT_CODES)
def _merge(one: argparse.ArgumentParser) -> None:
    """Put the reports of shards together and give the verdict.

    Put the reports of 'gradconform run --shard I/N' (or pytest --gradconform-shard) together and give the verdict
    on the whole. Refused where one is missing, or where target, contract, kit, seed, profile, waivers or
    environment differ.
    """
    one.add_argument("reports", metavar="REPORT.json", nargs="+", help="the report of each shard, in any order")
    add_telling(one)
    add_report_files(one)


_factor = partial(number_given, fits=lambda factor: factor >= 1, otherwise="no factor; expected a number from 1")

_LANGUAGE = """\
EXPR is a condition on counts: names, numbers, < <= > >= == !=, and, or, not
and parentheses; a name by itself holds where its count is not 0.

  {names}

  --fail-on 'new_failures or lost'                    the default
  --fail-on 'new_failures > 0 and not fixed'
  --fail-on 'failures >= 5 or headroom_drift or slower > 10'
"""


@command("compare", "reports:compare_reports")
def _compare(one: argparse.ArgumentParser) -> None:
    """Compare a run with the one before, and fail where it is worse.

    Compare the report of a new run with that of the one before: new failures, what was fixed, checks that were
    lost, errors that grew, slower checks, and what is different around them. Exit code 6 where the condition of
    --fail-on holds.
    """
    column = max(map(len, NAMES))
    names = "\n  ".join(f"{name:<{column}} {told}" for name, told in NAMES.items())
    one.epilog = f"{_LANGUAGE.format(names=names)}\n{EXIT_CODES}"
    one.add_argument("base", metavar="BASE.json", help="the report of the run before")
    one.add_argument("new", metavar="NEW.json", help="the report of the new run")
    one.add_argument(
        "--fail-on",
        type=reading(Expression.parse),
        default=DEFAULT,
        metavar="EXPR",
        help=f"see below (default: {DEFAULT!r})",
    )
    one.add_argument(
        "--intersection", action="store_true", help="look only at checks that both have; the contracts may differ"
    )
    one.add_argument(
        "--headroom-factor", type=_factor, default=2.0, metavar="F", help="how much an error may grow (default: 2)"
    )
    one.add_argument(
        "--slower-factor", type=_factor, default=2.0, metavar="F", help="how much longer a check may take (default: 2)"
    )
    add_telling(one, formats=False)
    one.add_argument(
        "--format",
        choices=("text", "markdown", "json"),
        default="text",
        help="text, markdown (fit for the summary of a CI job) or json (default: text)",
    )


_EXAMPLES = """\
examples:
  gradconform report run.json -v
  gradconform report run.json --html run.html
  gradconform report run.json --markdown - >> "$GITHUB_STEP_SUMMARY"
  gradconform report ours.json torch.json --html side-by-side.html
"""


@command("report", "reports:report", epilog=f"{_EXAMPLES}\n{EXIT_CODES}")
def _report(one: argparse.ArgumentParser) -> None:
    """Show a report again, as text, as one HTML page or as Markdown; several side by side.

    Print a report as its run did, -v with more of it, or write it as one HTML page that needs no network and no server,
    or as Markdown. Several reports stand side by side, each compared with the first. The exit code says nothing of the
    verdict.
    """
    one.add_argument("reports", metavar="RUN.json", nargs="+", help="what run --json wrote")
    add_telling(one)
    add_output(one, "--html", help="write an HTML page there; - is the standard output")
    add_output(one, "--markdown", help="write Markdown there; - is the standard output")
    add_output(one, "--junit", help="write XML in the form of JUnit there, a test per check; - is the standard output")
    add_output(
        one,
        "--skip-list",
        help="write there, in the form that torch's device tests read, the operations that are wrong, crash, hang or "
        "are not done; run --skip-operations reads it",
    )
    one.add_argument(
        "--intersection", action="store_true", help="of several, only checks that all have; the contracts may differ"
    )


@command("badge", "reports:write_badge", epilog=EXIT_CODES)
def _badge(one: argparse.ArgumentParser) -> None:
    """Draw the verdict of a report as a badge, an SVG picture.

    Draw a badge, an SVG picture that needs no network: contract, profile, verdict, and how many checks passed of
    those that were asked. The shards of a run have none before they are merged. The exit code says nothing of the
    verdict.
    """
    one.add_argument("report", metavar="RUN.json", help="what run --json wrote")
    add_output(one, "-o", "--output", default="-", help="write it there (default: -, the standard output)")
    one.add_argument(
        "--label",
        type=reading(_label_given),
        default="gradconform",
        metavar="TEXT",
        help="what stands in front (default: gradconform)",
    )


def _label_given(text: str) -> str:
    """Return a label; refuse one that nobody could see."""
    if not text.strip():
        msg = f"{text!r} is no label; expected a text, such as the name of the target"
        raise ValueError(msg)
    return text


def _text_given(text: str) -> str:
    """Return what a waiver is to say; refuse what says nothing."""
    if not text.strip():
        msg = f"{text!r} says nothing; expected some text"
        raise ValueError(msg)
    return text


def _last_day_given(text: str) -> dt.date:
    """Return the last day of a waiver; refuse what is no day, or is over."""
    today = current_day()
    try:
        day = dt.date.fromisoformat(text)
    except ValueError as error:
        msg = f"{text!r} is no day; expected one such as {today.year + 1}-01-31"
        raise ValueError(msg) from error
    if day < today:
        msg = f"{text} is over; expected today or a later day"
        raise ValueError(msg)
    return day


_FORM = """\
A waiver file holds one [[waiver]] for each failure that is expected:

  [[waiver]]
  check = "split.gradients.tied-apart"    # an id, or a glob that matches some
  verdict = "error"                       # or several: ["mismatch", "missing"]
  reason = "a shared parameter frees the graph of the other use"
  issue = "https://example.org/issues/7"
  owner = "ada"
  expires = 2027-01-31                    # the last day on which it holds
  when = { torch = ">=2.13,<2.14" }       # adapter, torch, device, dtype

A failure of another kind than the pinned verdict still fails; a check that
passes although it is waived is told, and fails under --strict. An entry that
has expired, or names no check, is refused before the run.
"""


@command("waivers", None, description=_FORM, epilog=EXIT_CODES)
def _waivers(one: argparse.ArgumentParser) -> None:
    """Write waivers for the failures of a run, or remove those that it no longer needs."""
    which = one.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=type(one))
    add_command(
        which,
        "add",
        "waivers:add",
        help="write an entry for each failure of a run",
        description=(
            "Append an entry for each failure of a run that is not waived. A run refuses the file until every entry "
            "has a reason, an issue and an owner: name them here, or write them into the file."
        ),
    )
    filled = which.choices["add"]
    filled.add_argument(
        "--owner", metavar="NAME", type=reading(_text_given), help="who sees to it that the failures end"
    )
    filled.add_argument("--reason", metavar="TEXT", type=reading(_text_given), help="why they are expected")
    filled.add_argument("--issue", metavar="URL", type=reading(_text_given), help="where they are tracked")
    filled.add_argument(
        "--expires",
        metavar="DATE",
        type=reading(_last_day_given),
        help="the last day on which they are (default: in 90 days)",
    )
    add_command(
        which,
        "prune",
        "waivers:prune",
        help="remove the entries that a run has shown to be needless",
        description=(
            "Remove the entries all of whose checks the run judged, and of which none failed. What the run did not "
            "judge stays, as do comments elsewhere in the file."
        ),
    )
    for parser in which.choices.values():
        parser.add_argument("--from", dest="report", metavar="REPORT.json", required=True, help="the report of the run")
        parser.add_argument(
            "--waivers", metavar="FILE", default=DEFAULT_FILE, help=f"the file (default: {DEFAULT_FILE})"
        )


@command("bundle", "bundle:bundle", epilog=EXIT_CODES)
def _bundle(one: argparse.ArgumentParser) -> None:
    """Put a report and all it rests on into a bundle that others can verify.

    Put the report of a whole run of profile full, its environment, waivers and records, and the hashes of kit and
    target, into one file that 'gradconform verify' checks without a network. Refused with each reason where what it
    states would not hold.
    """
    one.add_argument("report", metavar="RUN.json", help="the report")
    add_output(one, "-o", "--output", metavar="BUNDLE.zip", required=True, help="where the bundle is written")
    one.add_argument("--ndjson", metavar="FILE", help="the records of the same run, to be put in as well")
    one.add_argument(
        "--waivers", metavar="FILE", help="the waivers of the run (default: the file that the report names)"
    )
    one.add_argument(
        "--sign",
        metavar="KEY",
        help="sign the bundle with this private key of ssh, by ssh-keygen, into BUNDLE.zip.sig (default: unsigned)",
    )


@command("verify", "bundle:verify", epilog=EXIT_CODES)
def _verify(one: argparse.ArgumentParser) -> None:
    """Say whether what a bundle states holds, or each reason why not.

    Say whether what a bundle states holds: VALID, or each reason why not. Nothing in it is run, nothing is unpacked
    to disk but its waivers, its records and its signature, and no network is asked. Exit code 1 where it does not hold.
    """
    one.add_argument("bundle", metavar="BUNDLE.zip", help="a file that 'gradconform bundle' has written")
    one.add_argument("--target", metavar="FILE", help="the code that you have: is it what was judged?")
    one.add_argument(
        "--signers",
        metavar="FILE",
        help="who may have signed it, an allowed-signers file of ssh-keygen: lines such as ada@example.org ssh-ed25519 "
        "AAAA... (default: the signature is not checked)",
    )
