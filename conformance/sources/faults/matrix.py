"""The kill matrix: which check fails which fault, and its summaries."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from .outcome import Outcome
from .subject import SelftestOptions


@dataclass(frozen=True, slots=True)
class KillMatrix:
    """All outcomes of one self-test.

    ``checks`` are the ids that ran. ``complete`` means that every fault ran. ``left_out`` names the faults that are not
    wrong in this dtype, with the reason. ``planned`` is the number of planned outcomes.
    """

    options: SelftestOptions
    checks: tuple[str, ...]
    outcomes: tuple[Outcome, ...]
    planned: int
    complete: bool = True
    left_out: tuple[tuple[str, str], ...] = ()

    @property
    def faults(self) -> list[Outcome]:
        """The outcomes of faults."""
        return [outcome for outcome in self.outcomes if outcome.role == "fault"]

    @property
    def variants(self) -> list[Outcome]:
        """The outcomes of right variants."""
        return [outcome for outcome in self.outcomes if outcome.role == "variant"]

    @property
    def survivors(self) -> list[Outcome]:
        """Faults that passed all checks that name them."""
        return [o for o in self.faults if not (o.killed or o.untried or o in self.broken)]

    @property
    def untried(self) -> list[Outcome]:
        """Faults whose checks plain autograd does not support here."""
        return [outcome for outcome in self.faults if outcome.untried]

    @property
    def impossible(self) -> dict[str, str]:
        """The checks that plain autograd does not support here, with the errors."""
        return dict(sorted(found for outcome in self.outcomes for found in outcome.impossible))

    @property
    def broken(self) -> list[Outcome]:
        """Subjects that hung, crashed their worker, or could not be judged."""
        return [outcome for outcome in self.outcomes if outcome.broke is not None or outcome.errors]

    @property
    def accused(self) -> list[Outcome]:
        """Right variants that failed a check, or that no check judged."""
        return [outcome for outcome in self.variants if not outcome.right and outcome not in self.broken]

    @property
    def kills(self) -> Counter[str]:
        """The number of faults that each check killed, 0 included."""
        counts = Counter(dict.fromkeys(self.checks, 0))
        counts.update(check for outcome in self.faults for check in outcome.failed)
        return counts

    @property
    def without_kills(self) -> list[str]:
        """The checks that killed nothing, except those that cannot run here."""
        return sorted(check for check, count in self.kills.items() if not count and check not in self.impossible)

    @property
    def values(self) -> list[Outcome]:
        """The faults of values, for which a cause is looked for."""
        return [outcome for outcome in self.faults if outcome.value]

    @property
    def good(self) -> bool:
        """Whether every fault was killed and every right variant is clean."""
        return bool(self.outcomes) and all(outcome.right for outcome in self.outcomes)

    def areas(self) -> dict[tuple[str, str], int]:
        """Return the number of faults of a topic that an area killed, by area and topic."""
        found: Counter[tuple[str, str]] = Counter()
        for outcome in self.faults:
            found.update({(check.partition(".")[0], outcome.topic) for check in outcome.failed})
        return dict(found)
