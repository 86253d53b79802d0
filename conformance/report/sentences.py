"""The sentences of a report: the target, the verdict, the errors, and the command that reproduces a check."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gradconform.contract.extra_ids import ON_SCHEDULES
from gradconform.coverage import WITHHELD
from gradconform.devices.numeric_profile import NumericProfile
from gradconform.devices.probe import hidden_by
from gradconform.pipeline.training_step.composition import step_cases
from gradconform.results import Report, Result
from gradconform.run.options import RunOptions
from gradconform.run.sources import command_source, options_selecting
from gradconform.sources.pipeline import PipelineOptions
from gradconform.text.counts import count
from gradconform.torch_releases.tested import untested
from gradconform.user_input.option_help import CHECK_TIMEOUT

from .lines import Role, clause

#: Reasons for an insufficient run that are printed.
_LACKS = 3


def title(report: Report) -> str:
    """Return the target's name and version."""
    return " ".join(str(report.target[key]) for key in ("name", "version") if report.target.get(key))


def shard_name(report: Report) -> str:
    """Return the name of this part of a divided run."""
    return "shard {index} of {count}".format(**report.shard or {})


def tone(report: Report) -> Role:
    """Return the tone of a verdict: ``good``, ``warning`` or ``bad``."""
    if report.verdict in {"conforms", "passed"}:
        return "good"
    return "bad" if report.verdict in {"does not conform", "failed"} else "warning"


def verdict(report: Report) -> str:
    """Return the verdict on the target in one sentence, without a full stop."""
    withheld = sum(result.kind == WITHHELD for result in report)
    files = report.options.get("skip_operations") or ["a list"]
    reported = f"; {withheld} withheld by {', '.join(map(str, files))}" if withheld else ""
    return f"{_verdict(report)}{reported}"


def _verdict(report: Report) -> str:
    counts, name = report.summary, title(report)
    kinds = sorted({str(result.kind) for result in report.results if result.status == "error"})
    failed = _failed(report)
    if kinds:
        reported = f"; {failed} failed" if failed else ""
        return f"{name}: error: {', '.join(kinds)}: {count(counts['error'], 'check')} could not be judged{reported}"
    if report.shard is not None:
        return f"{name}: {shard_name(report)}: {_of_the_shard(report, failed)}; 'gradconform merge' gives the verdict"
    if report.extra and report.verdict != "incomplete":
        reported = f"{counts[report.verdict]} of {count(report.manifest, 'check')} {report.verdict}"
        reported += _by_the_runtime(report)
        alone = "a separate run decides" if report.with_contract else "was not run"
        return f"{name}: {reported}; no verdict on contract {report.contract}, which {alone}"
    if report.verdict == "does not conform":
        part = "" if report.whole else "; the contract was not run in full"
        return f"{name} does NOT conform: {failed} failed{part}"
    but = f"; {failed} failed" if failed else ""
    coverage = report.coverage
    if coverage is not None and report.verdict.startswith("conforms"):
        held = f", {counts['waived']} waived" if counts["waived"] else ""
        return (
            f"{name} conforms{'' if coverage.whole else ' in part'} to contract {report.contract} in profile "
            f"{report.profile}{' with waivers' if report.rests_on_waivers else ''}: {counts['passed']} of "
            f"{coverage.asked} checks passed{held}{coverage.left_out}{but}"
        )
    reported = (
        f"{name}: incomplete, no verdict: {counts['ran']} of {report.manifest} checks ran{but or ', none failed'}"
    )
    return f"{reported}{coverage.left_out if coverage else ''}{_lacking(report)}"


def _by_the_runtime(report: Report) -> str:
    """Return how many failures with the right split in torch belong to the runtime."""
    failed = [result.of_runtime for result in report if result.status == "failed"]
    of_runtime = sum(map(bool, failed))
    number = "all" if of_runtime == len(failed) else str(of_runtime)
    return f", {number} by torch's runtime itself" if of_runtime else ""


def _lacking(report: Report) -> str:
    """Return why the run judged too little."""
    lacks = report.lacks
    more = f"; and {count(len(lacks) - _LACKS, 'more such reason')}" if len(lacks) > _LACKS else ""
    return "".join(f"; {lack}" for lack in lacks[:_LACKS]) + more


def _failed(report: Report) -> str:
    """Return the number of failures by level; with ``--strict``, a waived check that passed is one more."""
    counts = report.summary
    levels = ((counts["failed"] - counts["failed_should"], "MUST"), (counts["failed_should"], "SHOULD"))
    failed = " and ".join(f"{number} {level}" for number, level in levels if number)
    if not report.strict or not counts["unexpectedly_passed"]:
        return failed
    unexpected = f"{count(counts['unexpectedly_passed'], 'waived check')} passed"
    return f"{failed} failed and {unexpected}" if failed else unexpected


def _of_the_shard(report: Report, failed: str) -> str:
    counts = report.summary
    if report.verdict == "incomplete":
        return f"incomplete: {counts['ran']} of {report.planned} checks ran{f'; {failed} failed' if failed else ''}"
    return f"{failed} failed" if failed else f"{counts['passed']} of {report.planned} checks passed"


def made(report: Report) -> tuple[str, ...]:
    """Return the report's date, its target's commit and the duration of its checks, as far as known."""
    at, commit = report.made, report.target.get("commit")
    seconds = sum(result.duration_s for result in report)
    reported = (
        re.sub(r"^([\d-]+)T([\d:]+):\d\d\+00:00$", r"\1 \2 UTC", at) if at else "",
        f"commit {commit}" if commit else "",
        f"checks took {seconds:.1f} s" if seconds else "",
    )
    return tuple(filter(None, reported))


def against_manifest(report: Report) -> str:
    """Return the count against the manifest."""
    counts = report.summary
    rest = [
        (counts["unsupported"], "unsupported"),
        (counts["not_run"], "planned but not run"),
        (report.selected - report.planned, "in other shards"),
        (report.manifest - report.selected, "not selected"),
    ]
    more = "".join(f"; {number} {what}" for number, what in rest if number)
    return f"{counts['ran']} of {report.manifest} {clause(report.counted)} ran{more}{_crashed(report)}"


def _crashed(report: Report) -> str:
    """Return how many checks ended their process and the time lost, for a run with a limit."""
    allowed, missing = report.options.get("max_crashes"), report.summary["not_run"]
    # Another kit's options are shown unchanged and may have any type.
    ended = [result for result in report.results if result.ended is not None]
    reported = crashed(ended, allowed if isinstance(allowed, int) else None)
    cost = f"; {count(missing, 'check')} {'was' if missing == 1 else 'were'} not run" if missing else ""
    return f"; {reported}{cost}" if reported else ""


def crashed(ended: Sequence[Result], allowed: int | None) -> str:
    """Return which checks ended their process, the time lost and the limit; empty if none did.

    A run that was resumed may exceed ``allowed``, which limits each session.
    """
    if not ended:
        return ""
    hung = sum(result.ended == "hang" for result in ended)
    what = "hung" if hung == len(ended) else "crashed or hung" if hung else "crashed"
    last = f"{'the last: ' if len(ended) > 1 else ''}{ended[-1].check}"
    seconds = sum(result.duration_s for result in ended)
    lost = f", {seconds:.0f} s lost" if round(seconds) else ""
    limit = f"; --max-crashes allows {allowed}" if allowed is not None and len(ended) <= allowed else ""
    return f"{count(len(ended), 'check')} {what} ({last}){lost}{limit}"


def verified_causes(report: Report) -> tuple[str, ...]:
    """Return on how many explained failures a single mistake was tried, if others only fail like them."""
    explained = [result.undone for result in report if result.undone]
    inherited = sum(any("verified_on" in one for one in undone) for undone in explained)
    verified = f"causes verified on {len(explained) - inherited} of {len(explained)} explained failures"
    return (f"{verified}; the others fail alike",) if inherited else ()


def numbers(report: Report) -> tuple[str, ...]:
    """Return the error against plain autograd, and each device's skipped operations, memory and repeatability."""
    texts = [
        write_lines(report.results) for write_lines in (_near, _repeated, _off_device, _memory, _deferred, _spread)
    ]
    return (*filter(None, texts), *_tolerances(report.devices or {}))


def torch_untested(report: Report) -> tuple[str, ...]:
    """Return a warning if the kit was not tested with the run's torch; empty if it was, or no run wrote the report."""
    if report.environment.get("torch_tested", True):
        return ()
    return (untested(str(report.environment["torch"])) or f"torch {report.environment['torch']} was not tested",)


def _near(results: Sequence[Result]) -> str:
    compared = [result for result in results if result.status == "passed" and result.error_ratio is not None]
    if not compared:
        return ""
    equal = sum(bool(result.bit_equal) for result in compared)
    text = f"{equal} of the {len(compared)} passed checks that compare values are bit-equal to plain autograd"
    nearest = _worst(compared, lambda result: result.error_ratio)
    more = (
        f"; the largest error is {nearest.error_ratio:.2g} of its bound ({nearest.check})"
        if nearest.error_ratio
        else ""
    )
    return text + more


def _repeated(results: Sequence[Result]) -> str:
    same = [result.repeats_bit_equal for result in results if result.repeats_bit_equal is not None]
    reported = f"{sum(same)} of the {len(same)} checks that repeat a program were bit-equal from repeat to repeat"
    return reported if same else ""


def _off_device(results: Sequence[Result]) -> str:
    shares = [result for result in results if result.off_device_share is not None]
    if not shares:
        return ""
    worst = _worst(shares, lambda result: result.off_device_share)
    if not worst.off_device_share:
        return f"all operations of the {len(shares)} recorded checks ran on the device"
    number = sum(bool(result.off_device_share) for result in shares)
    return (
        f"{number} of the {len(shares)} recorded checks ran operations off the device, "
        f"at most {worst.off_device_share:.1%} of them ({worst.check})"
    )


def _memory(results: Sequence[Result]) -> str:
    return _largest(results, "plain_autograd", "plain autograd's")


def _deferred(results: Sequence[Result]) -> str:
    split = [r for r in results if r.memory is not None and r.memory["undeferred"] != r.memory["plain_autograd"]]
    return _largest(split, "undeferred", "plain autograd without deferred weight gradients")


def _largest(results: Sequence[Result], measure: str, words: str) -> str:
    taken = [(result.check, result.memory) for result in results if result.memory is not None]
    ratios = {check: memory["peak"] / memory[measure] for check, memory in taken if memory[measure]}
    if not ratios:
        return ""
    worst = max(ratios, key=lambda check: ratios[check])
    return f"peak memory of the device is at most {ratios[worst]:.2f} times {words} ({worst})"


def _spread(results: Sequence[Result]) -> str:
    spreads = [result for result in results if result.oracle_spread]
    if not spreads:
        return ""
    worst = _worst(spreads, lambda result: result.oracle_spread)
    return (
        f"plain autograd differs between two runs in {count(len(spreads), 'check')}, by up to "
        f"{worst.oracle_spread:.1e} of the largest element ({worst.check}); bounds are wider there by as much"
    )


def _worst(results: Sequence[Result], measured: Callable[[Result], float | None]) -> Result:
    return max(results, key=lambda result: measured(result) or 0.0)


def numerics(report: Report) -> tuple[str, ...]:
    """Return how the devices' arithmetic differs from IEEE float32; equal devices share a line."""
    return _by_device(report, lambda facts: NumericProfile.from_dict(facts.get("numerics") or {}).sentences)


def probed_before(report: Report) -> tuple[str, ...]:
    """Return, for each device whose probe was read from the cache, when an earlier run made it."""
    anew = "gradconform doctor --device NAME probes again"
    return _by_device(report, lambda facts: [f"an earlier run, {at}; {anew}"] if (at := facts.get("cached_at")) else [])


def not_watched(report: Report) -> tuple[str, ...]:
    """Return the observations that fail or crash on the devices and are therefore off; equal ones share a line."""
    return _by_device(report, lambda facts: tuple(map(unwatched, hidden_by(facts))))


def _by_device(report: Report, sentences: Callable[[Mapping[str, Any]], Sequence[str]]) -> tuple[str, ...]:
    found: dict[str, list[str]] = {}
    for probe in (report.devices or {}).get("probes", ()):
        reported = sentences(probe["facts"])
        if reported and not probe["device"].startswith("cpu"):
            found.setdefault("; ".join(reported), []).append(probe["device"])
    return tuple(f"{', '.join(devices)}: {text}" for text, devices in found.items())


#: The checks that the kit skips on a device on which something cannot be observed.
_UNWATCHED = {
    "address": "its tensors show no address, so gradients that share memory are not found",
    "operations": "its operations cannot be logged, so those that run on the CPU are not found",
    "counter": "its counter of memory ends the process, so memory is not counted",
}


def unwatched(fact: str) -> str:
    """Return the sentence on a feature that cannot be observed on a device."""
    return _UNWATCHED.get(fact, f"its tensors show no {fact}")


def _tolerances(devices: Mapping[str, Any]) -> Iterator[str]:
    """Yield the devices that use tolerances of their own object instead of the kit's."""
    for probe in devices.get("probes", ()):
        factors = probe["facts"].get("tolerance") or {}
        if factors:
            named = ", ".join(f"c = {value:g} in {dtype}" for dtype, value in factors.items())
            yield f"{probe['device']} is judged by the tolerance of its device object: {named}"


def command_again(report: Report, result: Result) -> str | None:
    """Return the command line that reproduces the check of ``result`` alone; None if there is none.

    There is none if the check is on a schedule in place of the contract, or if the kit that made the report has other
    options.
    """
    target = str(report.target["text"])
    try:
        if report.command:
            alone = command_source(report.command).values.from_json(report.options).alone(result.check)
            return shlex.join(["gradconform", report.command, target, *alone.words()])
        if result.check.startswith(ON_SCHEDULES) or (report.extra and not report.options):
            return None
        selected = dict.fromkeys(options_selecting(result.check))
        options = options_of(report).but(device=result.device, dtype=result.dtype, **selected)
    except ValueError:
        return None
    limited = result.time_limit not in {None, CHECK_TIMEOUT}
    limit = ["--check-timeout", f"{result.time_limit:g}"] if limited else []
    return shlex.join(["gradconform", "replay", result.check, target, *options.words("results"), *limit])


def command_of_script(report: Report, result: Result) -> str | None:
    """Return the command that writes a failed training step as a script for torchrun; None if there is none."""
    scripted = (case.id for case in step_cases("full"))
    if result.status != "failed" or not report.extra or result.check not in scripted:
        return None
    try:
        options = PipelineOptions.from_json(report.options)
    except ValueError:
        return None
    if options.fixed:  # a script runs unmodified torch
        return None
    words = options.of_values.but(target=None).words()
    target = str(report.target["text"])
    return shlex.join(["gradconform", "replay", result.check, target, *words, "--script", f"{result.check}.py"])


def options_of(report: Report) -> RunOptions:
    """Return the options of the run that wrote ``report``; a handmade report may have none.

    Raises ``ValueError`` if they belong to another kit.
    """
    return (
        RunOptions.from_json(report.options)
        if report.options
        else RunOptions(seed=report.seed, contract=report.contract)
    )
