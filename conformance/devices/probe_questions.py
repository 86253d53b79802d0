"""The probe's questions to one device type, the most informative failure first; the first one imports torch.

They run in a separate process (:mod:`gradconform.devices.probe`), because a backend may raise, abort, crash or hang.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from gradconform.files.records import tupled
from gradconform.process.serving import Orders, Send

from .flags import flags_set
from .probe import FACTS, OPERATIONS, Answer, Line, Probe, Request, WrongAnswerError, fragile_questions
from .probe_cache import loaded_files
from .registry import ENTRY_POINTS, load_entry, load_module, registered_entries

if TYPE_CHECKING:
    from .device import Device

#: A backend's message can be pages long; its first line has the important part.
_LONGEST = 400


@dataclass(slots=True)
class Asker:
    """Runs questions; a question that an earlier process has run is not run again.

    ``known`` holds the answers by question. ``begin`` and ``end`` receive every question that is run.
    """

    known: Mapping[str, Answer] = field(default_factory=dict)
    begin: Callable[[str], None] = lambda _: None
    end: Callable[[str, Answer], None] = lambda _, __: None

    def ask(self, question: str, call: Callable[[], Any], *, again: bool = False) -> Answer:
        """Return the answer to ``question``, which is written as the call that it makes.

        ``again`` repeats a call that succeeded in the earlier process, for its effects on this one.
        """
        known = self.known.get(question)
        if known is not None and not (again and known.ok):
            return known
        self.begin(question)
        answer = _answer(question, call)
        self.end(question, answer)
        return answer


def _answer(question: str, call: Callable[[], Any]) -> Answer:
    try:
        return Answer(ok=True, value=call())
    except WrongAnswerError as error:
        return Answer(ok=False, message=f"{question}: {error}")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 (backends raise anything, even SystemExit)
        return Answer(ok=False, message=f"{question} raised {quoted(error)}")


def quoted(error: BaseException) -> str:
    """Return the type and the first line of an error."""
    first = next(iter(str(error).strip().splitlines()), "")
    text = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def answer(orders: Orders, send: Send) -> None:
    """Run a probe process: report each question, then its answer, and finally the records."""
    order = dict(next(orders))
    asker = Asker(
        known={question: Answer(**answer) for question, answer in order.pop("known").items()},
        begin=lambda question: send({"asks": question}),
        end=lambda _, answer: send({"answer": asdict(answer)}),
    )
    found = probes(Request(**tupled(order)), asker)
    send({"probes": [probe.to_dict() for probe in found], "files": loaded_files()})
    for probe in found:
        if probe.reason is None:
            _fragile_facts(probe.device, asker)


def probe_here(request: Request) -> list[Probe]:
    """Return the records of a device that only this process makes usable; probed here, without a time limit."""
    return probes(request, Asker())


def probes(request: Request, asker: Asker) -> list[Probe]:
    """Return the records; a single record with a reason if the type as a whole cannot be used."""
    named = request.type or "accelerator"
    for module in ("torch", *request.plugins):
        answer = asker.ask(f"import {module}", partial(load_module, module), again=True)
        sys.path[:] = request.path or sys.path  # set now: no file there may replace torch
        if not answer.ok:
            return [Probe(device=named, reason=answer.message)]
    if request.type is None:
        found = asker.ask("torch.accelerator.current_accelerator()", _accelerator)
        if not found.ok:
            return [Probe(device=named, reason=found.message)]
        return [] if found.value is None else _of_type(found.value, request, asker)
    return _of_type(request.type, request, asker)


def _torch() -> Any:
    """Return torch, which the first question has imported."""
    return sys.modules["torch"]


def _accelerator() -> str | None:
    from gradconform.torch_releases.accelerator import accelerator  # noqa: PLC0415 (it imports torch)

    current = accelerator(available=True)
    return None if current is None else current.type


def _of_type(name: str, request: Request, asker: Asker) -> list[Probe]:
    if name in registered_entries():
        question = f"the import of {registered_entries()[name].value!r} (entry point of {ENTRY_POINTS})"
        loaded = asker.ask(question, lambda: load_entry(name), again=True)
        if not loaded.ok:
            return [Probe(device=name, reason=loaded.message)]
    known = asker.ask(f"torch.device({name!r})", lambda: _known(name))
    if not known.ok:
        return [Probe(device=name, reason=known.message, unknown=True)]
    counted = asker.ask(f"device_count() of {name}", lambda: _count(name))
    if not counted.ok:
        return [Probe(device=name, reason=counted.message)]
    every = [f"{name}:{index}" for index in range(counted.value)] if request.every or not request.indices else []
    named = [f"{name}:{index}" for index in request.indices]
    texts = ["cpu"] if name == "cpu" else dict.fromkeys([*every, *named]) or [name]  # if none works, report why
    return [_of_device(text, counted.value, asker, dict(request.flags)) for text in texts]


def _known(name: str) -> None:
    _torch().device(name)


def _count(name: str) -> int:
    from .device import device_of  # noqa: PLC0415 (it imports torch)

    return 1 if name == "cpu" else device_of(name).device_count()


def _of_device(text: str, count: int, asker: Asker, flags: Mapping[str, str]) -> Probe:
    from .device import device_of  # noqa: PLC0415 (it imports torch)

    device = device_of(text)
    for question, call in _uses(text):
        answer = asker.ask(question, call)
        if not answer.ok:
            return Probe(device=text, reason=answer.message)
    copies = _copies(device, text, asker)
    dtypes = dict(_dtypes(device, text, asker))
    return Probe(
        device=text,
        dtypes=dtypes,
        preflight=tuple(_preflight(device, text, asker, dtypes)),
        facts={
            "count": count,
            **_facts(device, text, asker),
            **copies,
            "numerics": _numerics(device, text, asker, flags),
        },
    )


def _uses(name: str) -> Iterator[tuple[str, Any]]:
    """Yield the calls that every usable device must support."""
    made = f"torch.ones(2, device={name!r}, requires_grad=True)"

    yield made, lambda: _torch().ones(2, device=name, requires_grad=True) is None
    yield f"(x * x).sum().backward() of x = {made}", lambda: _gradient(name) is None
    yield f"x.grad.cpu() of x = {made}", partial(read_gradient, name)


def _gradient(name: str) -> Any:
    leaf = _torch().ones(2, device=name, requires_grad=True)
    (leaf * leaf).sum().backward()
    return leaf.grad


def read_gradient(name: str) -> None:
    """Compute a gradient on a device and read it; raise if it is wrong."""
    grad = _gradient(name)
    seen = None if grad is None else grad.cpu().tolist()
    if seen != [2.0, 2.0]:
        msg = f"expected [2.0, 2.0], got {seen}"
        raise WrongAnswerError(msg)


def _copies(device: Device, name: str, asker: Asker) -> dict[str, Any]:
    """Return the facts on the device's copies; this process too reads views as they say."""
    from .copies import VALUES, reading_of, wrong_copies  # noqa: PLC0415 (it imports torch)
    from .preflight import copy_is_bitwise  # noqa: PLC0415 (as above)

    here = device.torch_device
    reads = asker.ask(f"reads_views of {name}", lambda: reading_of(here, device.copied))
    wrong = asker.ask(f"wrong_copies of {name}", lambda: list(wrong_copies(here, device.copied)))
    bitwise = asker.ask(f"{copy_is_bitwise.__name__} on {name}", partial(copy_is_bitwise, device))
    device.reads_views = reads.value if reads.ok else "copy"
    device.wrong_copies = frozenset([*(wrong.value or ()), *([] if bitwise.ok else [VALUES])])
    return {"reads_views": device.reads_views, "wrong_copies": sorted(device.wrong_copies)}


def _dtypes(device: Device, name: str, asker: Asker) -> Iterator[tuple[str, str]]:
    from .dtypes import COMPLEX, DTYPES, try_dtype  # noqa: PLC0415 (it imports torch)

    claimed = device.dtypes
    for dtype in (*DTYPES, *COMPLEX):
        if claimed is not None and dtype not in claimed:
            yield dtype, "the device's object does not name it"
            continue
        answer = asker.ask(f"{dtype} on {name}", partial(try_dtype, device, dtype))
        yield dtype, answer.message


def _preflight(device: Device, name: str, asker: Asker, dtypes: Mapping[str, str]) -> Iterator[Line]:
    """Yield the lines; complex numbers need such a dtype, and mixing devices needs a device other than the CPU."""
    from .preflight import PREFLIGHT, TOLERATED, conj_and_neg_views_are_read, mixing_is_refused  # noqa: PLC0415 (as above)

    without_complex = bool(dtypes.get("complex64", "unknown"))
    for clause, line in PREFLIGHT.items():
        left_out = (device.is_cpu and line is mixing_is_refused) or (
            without_complex and line is conj_and_neg_views_are_read
        )
        if not left_out:
            answer = asker.ask(f"{line.__name__} on {name}", partial(line, device))
            yield Line(
                requirement=clause.requirement.rstrip("."),
                held=answer.ok,
                message=answer.message,
                tolerated=line in TOLERATED,
            )


def _facts(device: Device, name: str, asker: Asker) -> dict[str, Any]:
    """Return the other facts; a fact that could not be determined is None."""
    from .dtypes import product_keeps_digits  # noqa: PLC0415 (it imports torch)
    from .environment import description  # noqa: PLC0415 (as above)
    from .preflight import draws_as_the_cpu, replaces_data  # noqa: PLC0415 (as above)

    questions: dict[str, Callable[[], Any]] = {
        "counts_memory": lambda: device.counts_memory,
        "float32_product_keeps_digits": lambda: product_keeps_digits(device),
        "draws_as_the_cpu": lambda: draws_as_the_cpu(device),
        "replaces_data": lambda: replaces_data(device),
        "description": partial(description, name),
        "tolerance": lambda: dict(device.tolerances),
        "known_limits": lambda: {str(key): _plain(value) for key, value in device.known_limits.items()},
    }
    return {fact: asker.ask(f"{fact} of {name}", call).value for fact, call in questions.items()}


def _fragile_facts(name: str, asker: Asker) -> None:
    """Ask the questions of :func:`~gradconform.devices.probe.fragile_questions`, which may end the process."""
    from .device import device_of  # noqa: PLC0415 (it imports torch)
    from .fact_probes import operations_are_seen, shows  # noqa: PLC0415 (as above)
    from .preflight import backward_raises  # noqa: PLC0415 (as above)

    device, questions = device_of(name), fragile_questions(name)
    here = device.torch_device
    asker.ask(questions["backward_raises"], lambda: backward_raises(device))
    seen = asker.ask(questions[f"shows_{OPERATIONS}"], partial(operations_are_seen, here)).ok
    for fact in FACTS:
        asker.ask(questions[f"shows_{fact}"], partial(shows, here, fact, below=seen))


def _numerics(device: Device, name: str, asker: Asker, flags: Mapping[str, str]) -> dict[str, Any]:
    """Return the numeric profile under the run's flags; a probe that fails or crashes leaves its field unknown."""
    from .copies import VALUES  # noqa: PLC0415 (it imports torch)
    from .numerics import OF_SPECIAL_NUMBERS, measure_numerics  # noqa: PLC0415 (as above)

    def ask(probe: str, call: Callable[[], object]) -> object:
        if VALUES in device.wrong_copies and probe in OF_SPECIAL_NUMBERS:
            return None
        return asker.ask(f"the numeric probe {probe} of {name}", call).value

    with flags_set({flag: value for flag, value in flags.items() if flag != "autocast"}, device.type):
        return measure_numerics(device, ask).to_dict()


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str)) or value is None else str(value)
