"""Verdicts on cases: from the ranks' findings, or, if ranks ended, from the first to end and its place."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gradconform.judge.values import NONFINITE
from gradconform.process.stacks import stack_lines
from gradconform.process.worker import exit_in_words
from gradconform.results import Result
from gradconform.text.counts import count
from gradconform.text.findings import finding_line

from .cases import Case
from .exchange import Job, Mark, Outcome
from .training_step.composition import StepCase

How = Literal["raised", "hung", "died", "crashed"]
#: What a runtime may do itself with any implementation, by its words.
OF_RUNTIME: Mapping[How | None, str] = {"raised": "raises", "crashed": "crashes"}

#: The signals by which a process ends itself.
_CRASHES = frozenset({signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV})

#: Gloo's text for the two ends of a connection: the ports differ in each case, but the message is the same.
_ADDRESSES = re.compile(r" \(\[[^\]]*\]:\d+\S* <--> [^)]*\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A case in which ranks ended, by rank of this machine.

    ``marks`` are the last ones before they took too long, ``outcomes`` those of the case, and ``hung`` the stacks then.
    ``codes`` are the exit codes of ranks that ended first, and ``words`` their last output. ``launcher`` says how the
    launcher ended and all ranks with it, empty if it did not. ``overload`` says so if the machine had far more work
    than cores when a rank took too long.
    """

    marks: Mapping[int, Mark]
    outcomes: Sequence[Outcome]
    hung: Mapping[int, str] = field(default_factory=dict)
    codes: Mapping[int, int] = field(default_factory=dict)
    words: Mapping[int, str] = field(default_factory=dict)
    launcher: str = ""
    overload: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of a case; ``how`` and ``where`` the first rank ended, None and empty if none did."""

    result: Result
    how: How | None = None
    where: str = ""


@dataclass(frozen=True, slots=True)
class _First:
    """The first rank to end: its failure in words, the details, and how it ended."""

    rank: int
    what: str
    detail: str
    how: How


def verdict_of(case: Case | StepCase, outcomes: Sequence[Outcome], job: Job) -> Verdict:
    """Return the verdict on a case that every rank has finished."""
    findings = [finding for outcome in outcomes for finding in outcome.findings]
    error_ratios = [outcome.error_ratio for outcome in outcomes if outcome.error_ratio is not None]
    reasons = sorted({outcome.unsupported for outcome in outcomes if outcome.unsupported is not None})
    refused = {"status": "unsupported", "message": "\n".join(reasons)} if reasons else {}
    result = case.result(
        job.device,
        job.dtype,
        findings,
        error_ratio=max(error_ratios, default=None),
        bit_equal=None if not error_ratios else all(outcome.bit_equal is not False for outcome in outcomes),
        duration_s=max((outcome.duration_s for outcome in outcomes), default=0.0),
        **refused,
    )
    return Verdict(result=result)


def verdict_on(case: Case | StepCase, ended: Ended, job: Job) -> Verdict:
    """Return the verdict on a case in which ranks ended.

    An exception of the implementation, or a death or hang during its call, is charged to the target. A failure outside
    it is an error of the environment, and so are the end of all ranks with their launcher and a hang on an overloaded
    machine. The message begins with what happened, so that a report groups cases by it.
    """
    first = _first(ended, job.limit(case))
    marks = ended.marks
    mark = marks.get(first.rank, Mark(action="its start"))
    # If it was raised outside the implementation, only a run with another one can decide who is charged.
    with_all = {"died": ended.launcher, "hung": ended.overload}.get(first.how, "")
    charged = (mark.inside and not with_all) or first.how == "raised"
    inside = ", in the implementation under test" if mark.inside else ""
    where = f"rank {first.rank} {first.what} at {mark.action or 'the start of the case'}{inside}"
    others = [f"rank {rank} was at {m.action or 'the start'}" for rank, m in marks.items() if rank != first.rank]
    result = case.result(
        job.device,
        job.dtype,
        status="failed" if charged else "error",
        kind="error" if charged else "environment",
        message="\n".join(filter(None, [where, with_all, "; ".join(others), case.tried, first.detail])),
    )
    return Verdict(result=result, how=first.how, where=where)


def charged(found: Verdict, of_reference: Verdict | None, case: Case | StepCase) -> Result:
    """Return the result for a verdict on the target, given the one with a correct split backward in its place.

    If torch's runtime raises or crashes with both, it cannot run the case, and the target gets no verdict. If a
    training step is wrong with both, the runtime is at fault: only errors that the reference does not show are charged.
    If both are wrong in other ways, that is an error of the environment.
    """
    result = found.result
    if of_reference is None or of_reference.result.status not in {"failed", "error"}:
        return result
    if isinstance(case, StepCase) and result.findings and of_reference.result.findings:
        return _own(result, of_reference.result, case)
    if found.how == of_reference.how and found.how in OF_RUNTIME:
        where = _ADDRESSES.sub("", found.where)
        message = f"torch's runtime also {OF_RUNTIME[found.how]} with a correct split backward: {where}"
        return replace(result, status="unsupported", kind=None, message=message, findings=())
    message = f"a correct split backward also fails here, so the target is not blamed\n{result.message}"
    return replace(result, status="error", kind="environment", message=message)


def of_split(found: Verdict, of_plain: Sequence[Sequence[Verdict]], case: Case | StepCase) -> Result:
    """Return the verdict on the right split in torch's runtime, given runs of each plain replacement.

    It says whether every error also occurs with each replacement: then the runtime is at fault. So it is if the case
    raises with one of them and is wrong in another way with the others: a value that a runtime expects in W may arrive
    in an I that does all the work. A training step stays failed if it is, since it trains a wrong model; a schedule is
    charged as with any target.
    """
    first = next((runs[0] for runs in of_plain if runs), None)
    result = found.result if isinstance(case, StepCase) else charged(found, first, case)
    shown = [_shown(found, runs, case) for runs in of_plain]
    raised = found.how == "raised" and any(shown) and all(map(_wrong, of_plain))
    return replace(result, of_runtime=all(shown) or raised if all(of_plain) else None)


def _wrong(runs: Sequence[Verdict]) -> list[Verdict]:
    return [run for run in runs if run.result.status in {"failed", "error"}]


def _shown(found: Verdict, runs: Sequence[Verdict], case: Case | StepCase) -> bool:
    """Return whether plain runs show all errors of the split: unwritten memory differs in each run."""
    wrong = _wrong(runs)
    findings = [finding for run in wrong for finding in run.result.findings]
    if not (found.result.findings and findings):
        return any(run.how == found.how and run.how in OF_RUNTIME for run in wrong)
    return not isinstance(case, StepCase) or not _own_findings(found.result, findings, case)


def compared_with_unchanged_torch(result: Result, as_it_is: Verdict | None) -> Result:
    """Return the result on the right split in torch's runtime with the check's result on unmodified torch."""
    return result if as_it_is is None else replace(result, as_it_is=as_it_is.result.status)


def _own(result: Result, of_reference: Result, case: StepCase) -> Result:
    """Return the verdict on the errors that only the target shows; ``unsupported`` if there is none."""
    own = _own_findings(result, of_reference.findings, case)
    reported = "torch's runtime is also wrong here with a correct split backward"
    if not own:
        shown = "\n".join(map(finding_line, result.findings))
        return replace(result, status="unsupported", kind=None, message=f"{reported}: {shown}", findings=())
    lines = [
        case.tried,
        *map(finding_line, own),
        f"{reported} in {count(len(result.findings) - len(own), 'other finding')}",
    ]
    return replace(result, kind=own[0]["kind"], message="\n".join(lines), findings=tuple(own))


def _own_findings(result: Result, of_reference: Sequence[Mapping[str, Any]], case: StepCase) -> list[Mapping[str, Any]]:
    """Return the findings that only the target shows.

    An error of the reference after an act also counts as its own after later acts, which may show other numbers.
    """
    acts = case.composition.labels
    known: dict[tuple[str, str], int] = {}
    for finding in of_reference:
        act = acts.index(finding["action"])
        known[_known(finding)] = min(act, known.get(_known(finding), act))
    return [one for one in result.findings if acts.index(one["action"]) < known.get(_known(one), len(acts))]


def _known(finding: Mapping[str, Any]) -> tuple[str, str]:
    """Return a finding's kind and place; NaN counts as a number, since uninitialised memory may hold either."""
    kind = "mismatch" if finding["kind"] == "nonfinite" else str(finding["kind"])
    return kind, str(finding["where"]).removesuffix(NONFINITE)


def _first(ended: Ended, timeout: float) -> _First:
    """Return the rank that ended first, and how."""
    # A rank that hung raises at most because of the stack request.
    raised = {one.rank: one for one in ended.outcomes if one.raised and one.rank not in ended.hung}
    died = {rank: code for rank, code in ended.codes.items() if code != 1}  # a rank that raised exits with 1
    inside = {rank for rank, mark in ended.marks.items() if mark.inside}
    # An exception outside the implementation may only mean that another rank is gone, so it comes last.
    earliest = sorted(raised, key=lambda rank: raised[rank].at)
    raised_inside = [rank for rank in earliest if rank in inside]
    # Others wait for a rank that has not reached the case.
    hung = sorted(
        _inside_first(ended.hung, inside), key=lambda rank: rank in ended.marks and bool(ended.marks[rank].case)
    )
    # A rank that crashed leaves broken connections to the others, which raise for this reason alone.
    crashed = sorted(rank for rank, code in died.items() if -code in _CRASHES and rank in inside - set(raised))
    for rank in [*crashed, *raised_inside, *hung, *_inside_first(died, inside)]:
        if rank in raised:
            return _raised(raised[rank])
        if rank in ended.hung:
            stack = "\n".join(stack_lines(ended.hung[rank]))
            return _First(rank, f"took longer than {timeout:g} s", stack, "hung")
        how: How = "crashed" if -died[rank] in _CRASHES else "died"
        return _First(rank, f"died ({exit_in_words(died[rank])})", ended.words.get(rank, ""), how)
    for rank in sorted(inside - set(raised)):
        return _First(rank, "ended without a message", ended.words.get(rank, ""), "died")
    if earliest:
        return _raised(raised[earliest[0]])
    return _First(0, "ended", ended.words.get(0, ""), "died")


def _raised(outcome: Outcome) -> _First:
    return _First(outcome.rank, f"raised {outcome.cause}", (outcome.raised or "").strip(), "raised")


def _inside_first(ranks: Iterable[int], inside: set[int]) -> list[int]:
    return sorted(ranks, key=lambda rank: (rank not in inside, rank))
