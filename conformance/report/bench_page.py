"""The bench of real defects as terminal lines and as docs/bench.md."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from gradconform.bench import Defect
from gradconform.benching import Bench, Outcome

from .lines import Line, heading, wrapped
from .page.rendering import render_own


def listing(defects: Sequence[Defect]) -> list[Line]:
    """Return a line for each defect: its name, its class and the place of its report."""
    return [Line(f"{one.id:<34} {one.area:<22} {one.link}") for one in defects]


def bench_lines(bench: Bench, width: int) -> list[Line]:
    """Return the lines on the bench; the figures are the last line."""
    lines = [heading(f"bench: {len(bench.planned)} defects that public issues report", width)]
    for outcome in bench.outcomes:
        if not outcome.judged:
            reported = (outcome.broken if outcome.broken.unavailable else outcome.fixed).errors[0]
            lines.append(Line(f"  {outcome.defect.id:<34} not judged", "warning"))
            lines += wrapped(reported, width, indent=4, hanging=2, role="warning")
            continue
        found = f"found, {'' if outcome.right_cause else 'other cause: '}{outcome.cause}"
        verdict = found if outcome.found else "MISSED"
        lines.append(Line(f"  {outcome.defect.id:<34} {verdict}", "plain" if outcome.as_recorded else "bad"))
        if outcome.broken.errors:
            lines += wrapped(f"could not be judged: {outcome.broken.errors[0]}", width, indent=4, hanging=2, role="bad")
        if not outcome.silent:
            accused = (*outcome.fixed.failed, *outcome.fixed.errors) or ("no check was judged",)
            lines += wrapped(f"on the fixed version: {accused[0]}", width, indent=4, hanging=2, role="bad")
        why = outcome.defect.missed or outcome.defect.otherwise
        lines += wrapped(why, width, indent=4, hanging=2, role="faint") if why else []
    return [*lines, Line(), Line(figures(bench), "good" if bench.good else "bad")]


def figures(bench: Bench) -> str:
    """Return the figures of the bench in one sentence."""
    count, left = len(bench.judged), len(bench.outcomes) - len(bench.judged)
    not_judged = f"; {left} not judged" if left else ""
    return (
        f"{bench.found} of {count} defects found, {bench.right_causes} of these with the right cause; "
        f"{bench.accused} of {count} fixed versions accused{not_judged}; "
        f"{bench.seconds:.0f} s with {bench.workers} at a time"
    )


def bench_page(bench: Bench) -> str:
    """Return the text of docs/bench.md."""
    text = render_own(
        "bench.md.j2",
        count=len(bench.outcomes),
        found=bench.found,
        right=bench.right_causes,
        unexplained=bench.unexplained,
        accused=bench.accused,
        recall=_share(bench.found, len(bench.outcomes)),
        precision=_share(bench.found, bench.found + bench.accused),
        causes=_share(bench.right_causes, bench.found),
        seconds=f"{bench.seconds:.0f}",
        processor=f"{bench.processor:.0f}",
        workers=bench.workers,
        rebuilt=sum(not outcome.defect.real for outcome in bench.outcomes),
        torch=bench.environment["torch"],
        areas=list(_areas(bench)),
        defects=[_row(outcome) for outcome in bench.outcomes],
        missed=[_other_cause(outcome) for outcome in bench.outcomes if not outcome.found],
        otherwise=[_other_cause(outcome) for outcome in bench.outcomes if outcome.found and not outcome.right_cause],
        accusations=[_accused(outcome) for outcome in bench.outcomes if not outcome.silent],
        details=[(area, [_detail(outcome) for outcome in some]) for area, some in _by_area(bench).items()],
    )
    return text.rstrip() + "\n"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "none"


def _by_area(bench: Bench) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = {}
    for outcome in bench.outcomes:
        found.setdefault(outcome.defect.area, []).append(outcome)
    return found


def _areas(bench: Bench) -> Iterator[tuple[str, ...]]:
    for area, some in _by_area(bench).items():
        right = sum(one.found and one.right_cause for one in some)
        yield (
            area,
            str(len(some)),
            str(sum(one.found for one in some)),
            str(right),
            str(sum(not o.silent for o in some)),
        )


def _row(outcome: Outcome) -> tuple[str, ...]:
    defect = outcome.defect
    check = f"`{outcome.broken.failed[0]}`" if outcome.found else "none"
    more = f" and {len(outcome.broken.failed) - 1} more" if len(outcome.broken.failed) > 1 else ""
    reported = f"{outcome.cause}{'' if outcome.right_cause else ' (other)'}" if outcome.found else "missed"
    return f"[{defect.id}]({defect.link})", f"{check}{more}", reported


def _other_cause(outcome: Outcome) -> tuple[str, str, str]:
    defect = outcome.defect
    why = defect.missed or defect.otherwise or "not explained yet"
    return defect.id, why, "" if outcome.cause is None else outcome.cause


def _accused(outcome: Outcome) -> tuple[str, str]:
    return outcome.defect.id, ", ".join((*outcome.fixed.failed, *outcome.fixed.errors)) or "nothing was judged"


def _detail(outcome: Outcome) -> str:
    """Return the details of one defect as a list item."""
    defect = outcome.defect
    code = "own code" if defect.real else "rebuilt"
    text = (
        f"**[{defect.id}]({defect.link})** ({code}; affected: {defect.had}; fixed: {defect.fixed_in}). {defect.seen} "
        f"{defect.fault} `gradconform {' '.join(defect.words(defect.broken))}`"
    )
    return "\n".join(
        textwrap.wrap(text, 120, initial_indent="- ", subsequent_indent="  ", break_long_words=False,
                      break_on_hyphens=False)
    )  # fmt: skip
