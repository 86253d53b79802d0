"""How often the part of every output is in what an action gave: some are dropped, some are counted twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from gradconform.diagnosis.jointly import Given
from gradconform.diagnosis.question import flat, numbered
from gradconform.diagnosis.replay import Grads, Replay
from gradconform.evidence import Evidence

#: How near a coefficient has to be to 0, 1 or 2.
_NEAR = 0.2


def counted(evidence: Evidence, again: Replay, all_given: list[Given]) -> Iterator[tuple[str, Grads]]:
    """Solve for how often the part of every output is in what was given; yield it where some are missing or doubled."""
    live = [
        n
        for n, (root, given) in enumerate(zip(again.roots, again.given, strict=True))
        if root is not None and given is not None
    ]
    if len(live) < 2:  # noqa: PLR2004 (of one output all is scaled)
        return
    parts = [again.grads([given if n == only else None for n, given in enumerate(again.given)]) for only in live]
    counts = _solved(parts, all_given)
    if counts is None or len(set(counts)) == 1:
        return
    weights = dict(zip(live, counts, strict=True))
    starts = [
        None if given is None or not weights.get(n) else given * weights[n] for n, given in enumerate(again.given)
    ]
    what = "slot" if evidence.trial.hand_grads else "output"
    yield _told(what, weights, again, dict(zip(live, parts, strict=True))), again.grads(starts)


def _told(what: str, weights: Mapping[int, float], again: Replay, parts: Mapping[int, Grads]) -> str:
    missing = [n for n, weight in weights.items() if not weight]
    twice = [n for n, weight in weights.items() if weight > 1.0]
    told = []
    if missing:
        dropped = "its gradient is dropped" if len(missing) == 1 else "their gradients are dropped"
        told.append(f"{numbered(what, missing)} missing: {dropped}{_why(again, missing, parts)}")
    if twice:
        told.append(f"2.0 × {numbered(what, twice)}: counted twice")
    return "; ".join(told)


def _solved(parts: list[Grads], all_given: list[Given]) -> list[float] | None:
    """Return the coefficients of the parts where all of them are 0, 1 or 2."""
    rows = [row for given in all_given if (row := _row(parts, given)) is not None]
    if not rows:
        return None
    columns, got = torch.cat([columns for columns, _ in rows]), torch.cat([got for _, got in rows])
    if not bool(torch.isfinite(columns).all() and torch.isfinite(got).all()) or columns.shape[0] < columns.shape[1]:
        return None
    solved = torch.linalg.lstsq(columns, got.unsqueeze(1), driver="gelsd").solution.squeeze(1).tolist()
    counts = [float(round(count)) for count in solved]
    # Whether they explain what was given, to within rounding, is asked of them afterwards.
    near = all(abs(found - count) <= _NEAR for found, count in zip(solved, counts, strict=True))
    return counts if near and set(counts) <= {0.0, 1.0, 2.0} else None


def _row(parts: list[Grads], given: Given) -> tuple[Tensor, Tensor] | None:
    """Return what every part has to say of one tensor, and what was given; None where nothing can flow."""
    own = [part.inputs[given.name] if isinstance(given.name, int) else part.params[given.name] for part in parts]
    some = next((grad for grad in own if grad is not None), None)
    if some is None or (given.got is not None and given.got.shape != some.shape):
        return None
    zeros = torch.zeros_like(some)
    columns = torch.stack([flat(zeros if grad is None else grad) for grad in own], dim=1)
    return columns, flat(zeros if given.got is None else given.got)


def _why(again: Replay, missing: list[int], parts: Mapping[int, Grads]) -> str:
    """Return what is special about the outputs that are missing, and about no other one."""
    paths, outputs = list(again.outputs), list(again.outputs.values())

    def alone(special: Callable[[int], bool]) -> bool:
        return [n for n in parts if special(n)] == missing

    if alone(lambda n: any(outputs[n] is outputs[m] for m in range(n))):
        return ", the same tensor as another output"
    if alone(lambda n: isinstance(outputs[n], Tensor) and outputs[n].grad_fn is None):
        return ", an input or a parameter itself"
    if alone(lambda n: paths[n].count("[") > 1):
        return ", inside a tuple or dict"
    if alone(lambda n: all(grad is None for grad in parts[n].inputs)):
        return ", reaching no input"
    return ""
