"""Weight contexts that get lost: by which rule, as all W of a run show it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from gradconform.diagnosis.parts import added, run_of
from gradconform.evidence import Evidence
from gradconform.observation import Step
from gradconform.program import Action

#: The least number of W that tell one rule from another.
_TELLING = 3

#: How many rules that tell the same of a run are told; more are no help.
_TOLD = 2

#: Given the weight-related actions of all stages in order, the W that find their context.
Rule = Callable[[list[Action]], set[Action]]


def lost(evidence: Evidence, step: Step) -> str | None:
    """Name the rule by which contexts are lost, where it tells of every W of the run whether it added anything."""
    if step.action.kind != "W":
        return None
    run = run_of(evidence, step).steps
    steps = [seen for seen in run if seen.action.kind in {"B", "I", "W"} and not seen.action.misuse]
    if any(seen.raised for seen in run) or sum(seen.action.kind == "W" for seen in steps) < _TELLING:
        return None
    done = {seen.action for seen in steps if seen.action.kind == "W" and added(evidence, seen)}
    if not done:
        return None
    actions = [seen.action for seen in steps]
    fitting = [told for told, rule in rules(actions) if rule(actions) == done]
    return ", or ".join(fitting) if 0 < len(fitting) <= _TOLD else None


def rules(actions: list[Action]) -> Iterator[tuple[str, Rule]]:
    """Yield the ways in which contexts get lost, each with the W that find theirs all the same."""
    yield "only the first W of a stage adds anything", _first
    yield "only the newest weight context is kept", partial(_newest, 1)
    most = max((len(waiting) for _, waiting in _waiting(actions)), default=0)
    for count in range(2, most):
        yield f"only the newest {count} weight contexts are kept", partial(_newest, count)
    yield "weight contexts are lost where a B comes between I and W", _no_full_between
    if len({action.stage for action in actions}) > 1:
        yield "weight contexts are kept by micro-batch, whatever the stage", _by_microbatch
        yield "a W is dropped where another one waits", _alone
        yield "W takes the oldest weight context, of whatever stage", partial(_taken, 0)
        yield "W takes the newest weight context, of whatever stage", partial(_taken, -1)


def _waiting(actions: list[Action]) -> Iterator[tuple[Action, list[Action]]]:
    """Yield every W with the I that wait for theirs when it comes, its own among them."""
    waiting: list[Action] = []
    for action in actions:
        if action.kind == "I":
            waiting.append(action)
        elif action.kind == "W":
            yield action, list(waiting)
            waiting = [i for i in waiting if (i.stage, i.mb) != (action.stage, action.mb)]


def _first(actions: list[Action]) -> set[Action]:
    weights = [action for action in actions if action.kind == "W"]
    return {action for place, action in enumerate(weights) if action.stage not in {a.stage for a in weights[:place]}}


def _newest(count: int, actions: list[Action]) -> set[Action]:
    """Return the W of contexts that were among the ``count`` newest of their stage until they came."""
    kept: dict[int, list[int]] = {}
    found: set[Action] = set()
    for action in actions:
        own = kept.setdefault(action.stage, [])
        if action.kind == "I":
            own.append(action.mb)
            del own[:-count]
        elif action.kind == "W" and action.mb in own:
            own.remove(action.mb)
            found.add(action)
    return found


def _no_full_between(actions: list[Action]) -> set[Action]:
    kept: set[tuple[int, int]] = set()
    found: set[Action] = set()
    for action in actions:
        if action.kind == "I":
            kept.add((action.stage, action.mb))
        elif action.kind == "B":
            kept = {(stage, mb) for stage, mb in kept if stage != action.stage}
        elif (action.stage, action.mb) in kept:
            found.add(action)
    return found


def _by_microbatch(actions: list[Action]) -> set[Action]:
    kept: dict[int, int] = {}
    found: set[Action] = set()
    for action in actions:
        if action.kind == "I":
            kept[action.mb] = action.stage
        elif action.kind == "W" and kept.pop(action.mb, None) == action.stage:
            found.add(action)
    return found


def _taken(place: int, actions: list[Action]) -> set[Action]:
    """Return the W that get a context of their own stage where the oldest or newest of all stages is taken."""
    waiting: list[int] = []
    found: set[Action] = set()
    for action in actions:
        if action.kind == "I":
            waiting.append(action.stage)
        elif action.kind == "W" and waiting and waiting.pop(place) == action.stage:
            found.add(action)
    return found


def _alone(actions: list[Action]) -> set[Action]:
    return {action for action, waiting in _waiting(actions) if len(waiting) == 1}
