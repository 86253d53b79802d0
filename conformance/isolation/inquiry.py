"""What is found out about a check that ended its worker: whether it does so again, and whether plain autograd does."""

from __future__ import annotations

from gradconform.isolation.crew import Crew
from gradconform.isolation.death import Death, judged
from gradconform.isolation.seat import LOOK, Seat
from gradconform.records import Place
from gradconform.results import Result


def inquire(crew: Crew, begun: Result, first: Death, limit: float) -> tuple[Result, Seat]:
    """Return the result of a check that ended its worker, and a worker to go on with."""
    place = Place.of(begun)
    # Both workers will be needed, more often than not, and importing torch is what takes the time.
    spare = crew.hire() if first.kind == "crash" else None
    again, seat = _alone(crew, crew.hire(), place, limit, oracle=False)
    oracle: Result | Death | None = None
    if isinstance(again, Death):
        crew.dismiss(seat)
        oracle, seat = _alone(crew, spare or crew.hire(), place, limit, oracle=True)
    elif spare is not None:
        crew.dismiss(spare)
    if isinstance(oracle, Death):
        crew.dismiss(seat)
        seat = crew.hire()
    result = judged(begun, first, again, oracle)
    return (result if result.findings else crew.settled(result)), seat


def _alone(crew: Crew, seat: Seat, place: Place, limit: float, *, oracle: bool) -> tuple[Result | Death, Seat]:
    """Return what comes of one item in a worker that runs nothing else, and the worker."""
    seat.deal([place], oracle=oracle)
    while True:
        seat.worker.spoke(LOOK)
        for heard in seat.hear(limit):
            if isinstance(heard, Death) and seat.begun is None:
                seat = crew.replace_idle(seat, heard)
                seat.deal([place], oracle=oracle)
            elif isinstance(heard, Death) or heard.status != "not_run":
                return heard, seat
