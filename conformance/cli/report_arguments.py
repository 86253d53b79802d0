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
    add_output_options,
    add_report_files,
    argument_type,
    command,
    number_given,
)


@command("list", "contract:list_checks")
def _list(one: argparse.ArgumentParser) -> None:
    """List the checks of the contract.

    List the checks of the contract: id, level, profile, required features, requirement. If the output is not a
    terminal, print one line per check with tabs between the columns.
    """
    one.add_argument(
        "pattern", nargs="*", metavar="GLOB", help="list only the checks whose id matches, such as 'split.*'"
    )
    add_option(one, "profile", default="full", help="list the checks of this profile: quick, standard or full")
    add_option(one, "checks", help="list only the checks whose id matches, as GLOB does")
    add_option(one, "contract", default=CONTRACT_VERSION)
    one.add_argument("--json", action="store_true", help="print JSON, with the reason and the programs of each check")


@command("explain", "contract:explain")
def _explain(one: argparse.ArgumentParser) -> None:
    """Explain one check: requirement, reason, stage and program.

    Explain one check: its requirement, its reason, its stage with source, its program, and how it is judged.
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
        help="for kit developers: write the version's file from its checks and print the changes; DATE, such as "
        "2027-01-10, is the release day, after which the file is final",
    )
    one.add_argument("--space", action="store_true", help="print the space of trials instead (docs/space.md)")
    one.add_argument(
        "--cover",
        action="store_true",
        help="for kit developers: draw the rows of the space again with allpairspy, measure the traits of the random "
        "stages, and write both",
    )


def _day_given(text: str) -> dt.date:
    """Return the day; argparse reports the error in any other text."""
    try:
        return dt.date.fromisoformat(text)
    except ValueError as error:
        msg = f"expected a date such as 2027-01-10, got {text!r}"
        raise argparse.ArgumentTypeError(msg) from error


@command("merge", "reports:merge_reports", epilog=EXIT_CODES)
def _merge(one: argparse.ArgumentParser) -> None:
    """Merge the reports of all shards and print the verdict.

    Merge the reports of 'gradconform run --shard I/N' or pytest --gradconform-shard, and print the verdict of the whole
    run. The merge fails if a shard is missing, or if target, contract, kit, seed, profile, waivers or environment
    differ.
    """
    one.add_argument("reports", metavar="REPORT.json", nargs="+", help="reports of all shards, in any order")
    add_output_options(one)
    add_report_files(one)


_factor = partial(number_given, fits=lambda factor: factor >= 1, expected="a number of at least 1")

_LANGUAGE = """\
EXPR is a condition on counts: names, numbers, < <= > >= == !=, and, or, not
and parentheses. A name alone is true if its count is not 0.

  {names}

  --fail-on 'new_failures or lost'                    the default
  --fail-on 'new_failures > 0 and not fixed'
  --fail-on 'failures >= 5 or headroom_drift or slower > 10'
"""


@command("compare", "reports:compare_reports")
def _compare(one: argparse.ArgumentParser) -> None:
    """Compare a new run with a base run, and fail if it is worse.

    Compare the report of a new run with the report of a base run: new failures, fixed failures, missing checks, grown
    errors, slower checks, and differences of the environment. The exit code is 6 if the condition of --fail-on is true.
    """
    column = max(map(len, NAMES))
    names = "\n  ".join(f"{name:<{column}} {reported}" for name, reported in NAMES.items())
    one.epilog = f"{_LANGUAGE.format(names=names)}\n{EXIT_CODES}"
    one.add_argument("base", metavar="BASE.json", help="report of the base run")
    one.add_argument("new", metavar="NEW.json", help="report of the new run")
    one.add_argument(
        "--fail-on",
        type=argument_type(Expression.parse),
        default=DEFAULT,
        metavar="EXPR",
        help=f"exit with 6 if this condition is true, see below (default: {DEFAULT!r})",
    )
    one.add_argument(
        "--intersection", action="store_true", help="compare only checks in both reports; the contracts may differ"
    )
    one.add_argument(
        "--headroom-factor",
        type=_factor,
        default=2.0,
        metavar="F",
        help="report a check whose error/bound grew by more than F times (default: 2)",
    )
    one.add_argument(
        "--slower-factor",
        type=_factor,
        default=2.0,
        metavar="F",
        help="report a check that takes more than F times as long (default: 2)",
    )
    add_output_options(one, formats=False)
    one.add_argument(
        "--format",
        choices=("text", "markdown", "json"),
        default="text",
        help="print text, markdown (for a CI job summary) or json (default: text)",
    )


_EXAMPLES = """\
examples:
  gradconform report run.json -v
  gradconform report run.json --html run.html
  gradconform report run.json --summary - >> "$GITHUB_STEP_SUMMARY"
  gradconform report ours.json torch.json --html side-by-side.html
"""


@command("report", "reports:report", epilog=f"{_EXAMPLES}\n{EXIT_CODES}")
def _report(one: argparse.ArgumentParser) -> None:
    """Show one or more reports as text, HTML or Markdown.

    Print a report as its run did (-v prints more), or write it as Markdown or as one HTML page that needs no network
    and no server. Several reports are shown side by side, each compared with the first. The exit code does not depend
    on the verdict.
    """
    one.add_argument("reports", metavar="RUN.json", nargs="+", help="reports that run --json wrote")
    add_output_options(one)
    add_output(one, "--html", help="write an HTML page (- for standard output)")
    add_output(one, "--markdown", help="write Markdown (- for standard output)")
    add_output(one, "--summary", help="write a summary of at most 40 lines of Markdown (- for standard output)")
    add_output(one, "--junit", help="write JUnit XML, one test per check (- for standard output)")
    add_output(
        one,
        "--skip-list",
        help="write the operations that are wrong, crash, hang or are unsupported, in the format of torch's device "
        "tests; run --skip-operations reads it",
    )
    one.add_argument(
        "--intersection",
        action="store_true",
        help="show only the checks that all reports have; the contracts may differ",
    )


@command("badge", "reports:write_badge", epilog=EXIT_CODES)
def _badge(one: argparse.ArgumentParser) -> None:
    """Draw the verdict of a report as an SVG badge.

    Draw an SVG badge that needs no network: contract, profile, verdict, and how many of the selected checks passed.
    Merge the reports of shards first. The exit code does not depend on the verdict.
    """
    one.add_argument("report", metavar="RUN.json", help="report that run --json wrote")
    add_output(one, "-o", "--output", default="-", help="write the badge to PATH (default: -, standard output)")
    one.add_argument(
        "--label",
        type=argument_type(_label_given),
        default="gradconform",
        metavar="TEXT",
        help="print TEXT on the left of the badge (default: gradconform)",
    )


def _label_given(text: str) -> str:
    """Return a label; raise for an invisible one."""
    if not text.strip():
        msg = f"expected some text, such as the name of the target; got {text!r}"
        raise ValueError(msg)
    return text


def _text_given(text: str) -> str:
    """Return the text of a waiver; raise if it is empty."""
    if not text.strip():
        msg = f"expected some text, got {text!r}"
        raise ValueError(msg)
    return text


def _last_day_given(text: str) -> dt.date:
    """Return the last day of a waiver; raise if it is no day, or is past."""
    today = current_day()
    try:
        day = dt.date.fromisoformat(text)
    except ValueError as error:
        msg = f"expected a date such as {today.year + 1}-01-31, got {text!r}"
        raise ValueError(msg) from error
    if day < today:
        msg = f"expected today ({today}) or a later day, got {text}"
        raise ValueError(msg)
    return day


_FORM = """\
A waiver file has one [[waiver]] entry for each expected failure:

  [[waiver]]
  check = "split.gradients.tied-apart"    # an id or a glob
  verdict = "error"                       # or several: ["mismatch", "missing"]
  reason = "a shared parameter frees the graph of the other use"
  issue = "https://example.org/issues/7"
  owner = "ada"
  expires = 2027-01-31                    # the last day of the waiver
  when = { torch = ">=2.13,<2.14" }       # adapter, torch, device, dtype

A failure with a verdict that the entry does not name still fails. A waived
check that passes is reported, and fails the run with --strict. The run stops
before its first check if an entry has expired or matches no check.
"""


@command("waivers", None, description=_FORM, epilog=EXIT_CODES)
def _waivers(one: argparse.ArgumentParser) -> None:
    """Add waivers for failures, or remove unused waivers."""
    which = one.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=type(one))
    add_command(
        which,
        "add",
        "waivers:add",
        help="add an entry for each failure of a run",
        description=(
            "Append an entry for each failure of a run that has no waiver. Every entry needs a reason, an issue and an "
            "owner before a run accepts the file: give them here, or write them into the file."
        ),
    )
    filled = which.choices["add"]
    filled.add_argument(
        "--owner", metavar="NAME", type=argument_type(_text_given), help="name the owner who fixes the failures"
    )
    filled.add_argument(
        "--reason", metavar="TEXT", type=argument_type(_text_given), help="say why the failures are expected"
    )
    filled.add_argument(
        "--issue", metavar="URL", type=argument_type(_text_given), help="link the issue that tracks them"
    )
    filled.add_argument(
        "--expires",
        metavar="DATE",
        type=argument_type(_last_day_given),
        help="set the last day of the waivers (default: in 90 days)",
    )
    add_command(
        which,
        "prune",
        "waivers:prune",
        help="remove the entries that a run did not need",
        description=(
            "Remove each entry if the run judged all of its checks and none failed. Other entries stay, and so do "
            "comments elsewhere in the file."
        ),
    )
    for parser in which.choices.values():
        parser.add_argument(
            "--from", dest="report", metavar="REPORT.json", required=True, help="read the report of the run"
        )
        parser.add_argument(
            "--waivers", metavar="FILE", default=DEFAULT_FILE, help=f"change this waiver file (default: {DEFAULT_FILE})"
        )


@command("bundle", "bundle:bundle", epilog=EXIT_CODES)
def _bundle(one: argparse.ArgumentParser) -> None:
    """Pack a report and its evidence into a bundle to verify.

    Pack the report of a whole run of profile full into one file, with its environment, waivers, records, and the hashes
    of kit and target. 'gradconform verify' checks the file without a network. If the bundle's statement would not hold,
    nothing is written and each reason is printed.
    """
    one.add_argument("report", metavar="RUN.json", help="report that run --json wrote")
    add_output(one, "-o", "--output", metavar="BUNDLE.zip", required=True, help="write the bundle to BUNDLE.zip")
    one.add_argument("--ndjson", metavar="FILE", help="add the records of the same run")
    one.add_argument(
        "--waivers", metavar="FILE", help="add the waivers of the run (default: the file that the report names)"
    )
    one.add_argument(
        "--sign",
        metavar="KEY",
        help="sign the bundle with this private ssh key; ssh-keygen writes BUNDLE.zip.sig (default: unsigned)",
    )


@command("verify", "bundle:verify", epilog=EXIT_CODES)
def _verify(one: argparse.ArgumentParser) -> None:
    """Verify a bundle, and print each reason if it does not hold.

    Verify the statement of a bundle: print VALID, or each reason why it does not hold. No code from the bundle runs,
    only its waivers, records and signature are unpacked to disk, and no network is used. The exit code is 1 if the
    statement does not hold.
    """
    one.add_argument("bundle", metavar="BUNDLE.zip", help="bundle that 'gradconform bundle' wrote")
    one.add_argument("--target", metavar="FILE", help="check that FILE is the code that was judged")
    one.add_argument(
        "--signers",
        metavar="FILE",
        help="check the signature with this ssh-keygen allowed-signers file, with lines such as ada@example.org "
        "ssh-ed25519 AAAA... (default: the signature is not checked)",
    )
