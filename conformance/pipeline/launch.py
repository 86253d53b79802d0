"""Runs the cases of a pipeline in ranks, and starts the ranks again after a case that ended them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace

from gradconform.process.orphans import Orphans
from gradconform.process.wait_notices import waiting
from gradconform.results import Result

from .cases import Case
from .exchange import Job
from .ranks import Launcher, Machines
from .training_step.composition import StepCase
from .verdicts import OF_RUNTIME, Verdict, charged, compared_with_unchanged_torch, of_split, verdict_of, verdict_on

#: The implementation that replaces the target to decide whether torch's runtime or the machine is at fault.
REFERENCE = "reference-split"
#: The replacements of the right split for the same decision, which share none of its code in I and W. One is the
#: plainest split, which runs hooks of parameters in W as a wrapper requires. The other does one backward in I and keeps
#: nothing until W.
PLAIN = ("gradconform.reference.walked_twice", "gradconform.reference.whole_in_input")
#: The number of plain runs before a failure is charged to the split.
_PLAIN_RUNS = 3

#: The most cases in a row that may end the ranks: a target that always does would cost a start for each. It is more
#: than two schedules have: some releases of torch (2.9 to 2.11) cannot run two stages of a rank side by side on a CPU.
IN_A_ROW = 20

OnResult = Callable[[Result], None]


def run_pipeline(job: Job, machines: Machines, on_result: OnResult, on_start: OnResult = lambda _: None) -> str | None:
    """Run every case and pass its result to ``on_result``; return why the run stopped early, or None.

    ``on_start`` receives each case as it begins on the target, as a ``not_run`` result.

    Before a failed case is reported, it is run again with the kit's correct split backward in place of the target,
    unless the target runs whole steps. With the right split in torch, unmodified torch is run first, and failures are
    run again with the plain implementations.
    """
    wrong: list[Verdict] = []

    with closing(Orphans()), closing(Launcher(machines)) as launcher:
        before = _verdicts(replace(job, fixed=False), launcher) if job.fixed and machines.machines == 1 else {}

        def report(result: Result) -> None:
            on_result(compared_with_unchanged_torch(result, before.get(result.check)))

        def sort_out(found: Verdict) -> None:
            # A death or hang outside the implementation is never charged to it, whatever the reference does.
            needs_reference = found.result.status == "failed" or (
                found.result.status == "error" and found.how in OF_RUNTIME
            )
            if needs_reference and machines.machines == 1 and (job.fixed or not job.runtime):
                wrong.append(found)
            else:
                report(found.result)

        stopped = _run_all(job, launcher, sort_out, on_start=on_start)
        with waiting("running the failed checks again with a correct split"):
            _report_wrong(wrong, job, launcher, report)
        launcher.finish()
    return stopped


def _report_wrong(wrong: list[Verdict], job: Job, launcher: Launcher, on_result: OnResult) -> None:
    """Report the failures after running the reference in the same cases."""
    if not wrong:
        return
    cases = {case.id: case for case in job.cases}
    if job.fixed:
        _report_owner(wrong, cases, job, launcher, on_result)
        return
    own = {found.result.check: found for found in wrong}
    of_reference = own if job.target == REFERENCE else _verdicts_on(REFERENCE, list(own), job, launcher)
    for found in wrong:
        check = found.result.check
        on_result(charged(found, of_reference.get(check), cases[check]))


def _report_owner(
    wrong: list[Verdict], cases: Mapping[str, Case | StepCase], job: Job, launcher: Launcher, on_result: OnResult
) -> None:
    """Report failures with the right split in torch, and whether all plain replacements share them.

    Other failures are run again: if the runtime reads unwritten memory, every run shows other tensors.
    """
    left = wrong
    runs: dict[str, dict[str, list[Verdict]]] = {found.result.check: {name: [] for name in PLAIN} for found in wrong}
    results: dict[str, Result] = {}
    for _ in range(_PLAIN_RUNS):
        for name in PLAIN:
            for check, verdict in _verdicts_on(name, [found.result.check for found in left], job, launcher).items():
                runs[check][name].append(verdict)
        for found in left:
            check = found.result.check
            results[check] = of_split(found, list(runs[check].values()), cases[check])
        left = [found for found in left if results[found.result.check].of_runtime is False]
        if not left:
            break
    for found in wrong:
        on_result(results[found.result.check])


def _verdicts_on(reference: str, wrong: list[str], job: Job, launcher: Launcher) -> dict[str, Verdict]:
    """Return the verdicts on a reference in the cases with these ids."""
    cases = tuple(case for case in job.cases if case.id in wrong)
    again = replace(job, cases=cases, target=reference, runtime=False, fixed=False)
    return _verdicts(again, launcher, in_a_row=len(cases))


def _verdicts(job: Job, launcher: Launcher, *, in_a_row: int = IN_A_ROW) -> dict[str, Verdict]:
    """Return the verdicts on a job's cases by id, up to the point at which ``in_a_row`` cases have ended the ranks."""
    found: list[Verdict] = []
    _run_all(job, launcher, found.append, in_a_row=in_a_row)
    return {one.result.check: one for one in found}


def _run_all(
    job: Job,
    launcher: Launcher,
    on_verdict: Callable[[Verdict], None],
    *,
    on_start: OnResult = lambda _: None,
    in_a_row: int = IN_A_ROW,
) -> str | None:
    """Run every case; give up after ``in_a_row`` cases in a row have ended the ranks."""
    left, ended = job.cases, 0
    while ended < in_a_row:
        before = len(left)
        for found in _one_start(replace(job, cases=left), launcher, on_start):
            on_verdict(found)
            left = left[1:]
        if not left:
            return None
        ended = ended + 1 if before - len(left) == 1 else 1
        if launcher.never_met:
            return f"ranks hang before their first case, at {launcher.never_met}"
        if launcher.machines.machines > 1:
            return "a rank ended; runs on several machines are not started afresh"
    return f"ranks ended early in {in_a_row} cases in a row"


def _one_start(job: Job, launcher: Launcher, on_start: OnResult) -> Iterator[Verdict]:
    """Start the ranks once; yield the verdict on each case; the last one may be the case in which they ended."""
    ranks = launcher.start(job)
    for case in job.cases:
        on_start(case.result(job.device, job.dtype, status="not_run"))
        outcomes = ranks.follow(case)
        if ranks.hung or any(outcome.raised for outcome in outcomes) or len(outcomes) < launcher.machines.ranks:
            yield verdict_on(case, ranks.ended(case), job)
            return
        yield verdict_of(case, outcomes, job)
    ranks.wait()
