"""The expected time of a run on devices: from costs by kind of check and the pace here, corrected while checks run."""

from __future__ import annotations

import re

import pytest
import torch

from gradconform.contract.extra_ids import OPERATIONS, ORACLES
from gradconform.devices.pace import pace
from gradconform.files.records import Header
from gradconform.results import Place
from gradconform.run import forecast
from gradconform.run.forecast import COSTS, PACE, Forecast, duration, expected_seconds, kind_of
from gradconform.run.sources import SOURCES


def header(**paces: float) -> Header:
    return Header(report={}, places=(), paces=paces)


def places(*checks: str, device: str = "npu") -> list[Place]:
    return [Place(check, device, "float32") for check in checks]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of a forecast, as its only element."""
    clock = [0.0]
    monkeypatch.setattr(forecast.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(forecast.os, "cpu_count", lambda: 2)
    return clock


def test_each_kind_of_check_of_a_device_has_a_measured_cost() -> None:
    areas = {source.area for source in SOURCES.values() if source.area}
    assert set(COSTS) == {"contract", *areas, *(f"{OPERATIONS}.{oracle}" for oracle in ORACLES)}
    assert all(cost.beside + cost.on_device > 0 for cost in COSTS.values())


@pytest.mark.parametrize(
    ("check", "kind"),
    [
        ("full.gradients.mlp", "contract"),
        ("space.row.1", "contract"),
        ("grad_tuple.layout.expanded-full", "contract"),
        ("ops.split.nn.functional.gelu", "ops"),
        ("ops.layout.sin", "ops.layout"),
        ("blocks.full.lora.at-2-15", "blocks"),
        ("settings.full.deterministic.mlp", "settings"),
        ("faults.found.overwrite", "faults"),
    ],
)
def test_the_kind_of_a_check_follows_from_its_id(check: str, kind: str) -> None:
    assert kind_of(check) == kind


def test_a_slow_device_takes_longer_and_a_slow_machine_even_more() -> None:
    checks = places("ops.full.sin", "ops.edges.sin")
    usual = expected_seconds(checks, {"cpu": PACE, "npu": PACE})
    slow_device = expected_seconds(checks, {"cpu": PACE, "npu": 10 * PACE})
    slow_machine = expected_seconds(checks, {"cpu": 10 * PACE, "npu": 10 * PACE})
    assert usual < slow_device < slow_machine == pytest.approx(10 * usual)


def test_named_operations_have_more_samples_at_the_edges_of_kernels() -> None:
    def seconds(check: str, **options: object) -> float:
        made = Header(report={"options": options}, places=(), paces={"cpu": PACE, "npu": PACE})
        return Forecast(made, places(check), 1).seconds

    assert seconds("ops.edges.sin", operation=["sin"]) > seconds("ops.edges.sin", operation=["all"])
    assert seconds("ops.edges.sin", operation=["all"], profile="standard") == seconds("ops.edges.sin")
    assert seconds("ops.full.sin", operation=["sin"]) == seconds("ops.full.sin", operation=["all"])


def test_a_device_without_a_pace_counts_as_the_cpu_and_the_line_says_so() -> None:
    one = Forecast(header(cpu=PACE), places("ops.full.sin"), 1)
    assert one.seconds == Forecast(header(cpu=PACE, npu=PACE), places("ops.full.sin"), 1).seconds
    assert "npu counts as the CPU, since a step on it failed" in one.sentence


def test_two_workers_halve_the_time_and_more_than_the_cores_do_not(now: list[float]) -> None:
    del now
    checks = places(*(f"ops.full.{number}" for number in range(4000)))
    one, two, many = (Forecast(header(cpu=PACE), checks, workers).seconds for workers in (1, 2, 64))
    assert two == many
    assert one > 1.9 * two - 4


def test_the_line_has_the_number_of_checks_the_time_and_the_basis(now: list[float]) -> None:
    del now
    checks = places(*(f"ops.full.{number}" for number in range(1200)))
    line = Forecast(header(cpu=PACE, npu=3 * PACE), checks, 2).sentence
    assert re.fullmatch(
        r"1,200 checks, about \d+ (s|min) with 2 workers \(estimate: mean costs of each kind of check; "
        r"a step on npu takes 3 times as long as on the CPU\)",
        line,
    )


def test_the_time_that_is_left_follows_from_how_long_the_results_took(now: list[float]) -> None:
    checks = places(*(f"ops.full.{number}" for number in range(100)))
    one = Forecast(header(cpu=PACE, npu=PACE), checks, 1)
    assert one.seconds_left == one.seconds
    now[0] = 300.0  # much slower than expected
    for place in checks[:75]:
        one.finish(place)
    assert one.seconds_left == pytest.approx(100)
    assert one.progress == "ran 75 of 100 checks after 300 s; about 100 s left"
    one.finish(Place("ops.full.0", "cpu", "float32"))  # a result of an earlier run
    assert one.progress.startswith("ran 75 of 100")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (9.2, "10 s"), (61, "65 s"), (400, "7 min"), (9000, "2.5 h")]
)
def test_a_duration_is_rounded_up_to_what_an_estimate_can_say(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_pace_of_the_cpu_is_measured_and_a_device_that_fails_has_none() -> None:
    found = pace(torch.device("cpu"))
    assert found is not None
    assert 0 < found < 1
    assert pace(torch.device("meta")) is None
