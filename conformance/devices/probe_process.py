"""The process that asks: each question is told before it is asked, so that the one that kills it is known.

Its arguments are one JSON object; what it finds goes to the standard output, one JSON object a line.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from dataclasses import asdict
from typing import Any

from gradconform.devices.asking import Answer, Asker
from gradconform.devices.questions import Request, probes


def main(given: str) -> None:
    """Ask what ``given`` says, write down what is found, and end without the clean-up in which backends abort."""
    asked: dict[str, Any] = json.loads(given)
    # What a backend prints must not be taken for an answer.
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    faulthandler.enable()
    folder = os.getcwd()  # noqa: PTH109 (sys.path holds strings)
    sys.path[:] = [place for place in asked["path"] if place not in {"", folder}]

    def tell(**values: Any) -> None:
        print(json.dumps(values), file=pipe, flush=True)

    asker = Asker(
        known={question: Answer(**answer) for question, answer in asked["known"].items()},
        begin=lambda question: tell(begin=question),
        end=lambda question, answer: tell(end=question, answer=asdict(answer)),
    )
    request = Request(
        type=asked["type"],
        indices=tuple(asked["indices"]),
        every=asked["every"],
        plugins=tuple(asked["plugins"]),
        path=tuple(asked["path"]),
    )
    tell(probes=[probe.to_dict() for probe in probes(request, asker)])
    pipe.close()
    sys.stderr.flush()
    os._exit(0)
