"""What a run of pipelines was asked for is in its report; a failure is told with the command that shows it alone."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from gradconform.cli.arguments import parser
from gradconform.cli.run import options_of
from gradconform.pipeline.cases import SCENARIOS, cases_of
from gradconform.pipeline.training_step.composition import step_cases
from gradconform.report.sentences import command_again, command_of_script
from gradconform.report.terminal import closing
from gradconform.results import Report, Result
from gradconform.sources.pipeline import PipelineOptions
from gradconform.user_input.values import SelectionError


def told(options: dict[str, Any], *results: Result, target: str = "torch") -> Report:
    """Return the report of a run with these options."""
    return Report(
        profile="standard",
        target={"text": target, "name": target},
        environment={},
        seed=20,
        manifest=len(results),
        planned=len(results),
        extra=("training steps on 2 ranks",),
        results=list(results),
        options=options,
    )


def failed(check: str, **how: Any) -> Result:
    return Result(
        **{
            "check": check, "level": "MUST", "device": "cpu", "dtype": "float32", "status": "failed", "kind": "error",
            "requirement": "A training step MUST end.", "message": "the plainest training step\nrank 1 hung", **how,
        }
    )  # fmt: skip


def asked(words: str) -> PipelineOptions:
    """Return the options that are typed, as the command takes them."""
    found: PipelineOptions = options_of(
        parser().parse_args(["pipeline", "torch", *shlex.split(words)]), PipelineOptions
    )
    return found


def test_the_command_and_a_report_have_the_same_defaults() -> None:
    assert asked("") == PipelineOptions(target="torch")
    assert PipelineOptions().words() == []


@pytest.mark.parametrize(
    ("words", "check", "again"),
    [
        ("", "step.plain", "--checks step.plain"),
        ("--profile standard --checks 'step.*'", "step.ddp", "--profile standard --checks step.ddp"),
        (
            "--device cuda:1 --dtype bfloat16 --seed 3 --timeout 5",
            "step.ddp",
            "--checks step.ddp --device cuda:1 --dtype bfloat16 --seed 3 --timeout 5",
        ),
        (
            "--schedule GPipe,ZBVZeroBubble --ranks 4 --microbatches 9",
            "pipeline.zbv-zero-bubble.tied",
            "--schedule ZBVZeroBubble --checks pipeline.zbv-zero-bubble.tied --ranks 4 --microbatches 9",
        ),
        (
            "--schedule 1F1B --schedule 'of mine/my own.csv'",
            "pipeline.my-own.scaled",
            "--schedule 'of mine/my own.csv' --checks pipeline.my-own.scaled",
        ),
        (
            "--schedule 1F1B --ranks 4 --nnodes 2 --rdzv-endpoint node0:29500 --rdzv-id a",
            "pipeline.1f1b.tied",
            "--schedule 1F1B --checks pipeline.1f1b.tied --ranks 4 --nnodes 2 --rdzv-endpoint node0:29500 --rdzv-id a",
        ),
        ("--fixed", "step.plain", "--checks step.plain --fixed"),
        (
            "--device mine --device-plugin my.device,other --ranks-share-device",
            "step.plain",
            "--checks step.plain --device mine --device-plugin my.device --device-plugin other --ranks-share-device",
        ),
    ],
)
def test_a_failure_is_reported_with_a_command_that_runs_only_it(words: str, check: str, again: str) -> None:
    options = asked(words)
    written = options.to_json()
    assert PipelineOptions.from_json(written) == options
    assert command_again(told(written), failed(check)) == f"gradconform pipeline torch {again}"
    assert asked(again) == options.alone(check)


def test_with_the_right_split_in_torch_no_script_is_offered() -> None:
    scripts = [
        command_of_script(told(PipelineOptions(fixed=fixed).to_json()), failed("step.plain")) for fixed in (False, True)
    ]
    assert scripts == ["gradconform replay step.plain torch --script step.plain.py", None]


def test_the_schedule_is_found_from_the_ids_of_its_checks() -> None:
    names = ("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
    options = PipelineOptions(schedule=names)
    found = [options.alone(case.id).schedule for case in cases_of(names, ranks=2)]
    assert found == [(name,) for name in names for _ in SCENARIOS]


@pytest.mark.parametrize("how", [{}, {"status": "error", "kind": "environment"}])
def test_a_rank_that_ended_is_reported_with_the_reproduce_command(how: dict[str, str]) -> None:
    options = PipelineOptions(profile="standard", timeout=5)
    check = step_cases("standard")[-1].id
    lines = [line.text for line in closing(told(options.to_json(), failed(check, **how)), 200)]
    again = f"reproduce: gradconform pipeline torch --profile standard --checks {check} --timeout 5"
    assert [line.strip() for line in lines if "reproduce" in line] == [again]


@pytest.mark.parametrize(
    "options", [{}, {"command": "pipeline"}, {**PipelineOptions().to_json(), "command": "other"}, {"target": "torch"}]
)
def test_other_extra_checks_get_no_reproduce_command(options: dict[str, Any]) -> None:
    assert command_again(told(options), failed("stage.manual.full")) is None


#: A file that is read, so that not every text can be typed.
FILE = "waivers"


@pytest.mark.parametrize("name", sorted({*PipelineOptions().to_json()} - {FILE}))
def test_a_report_gives_only_options_that_the_command_line_accepts(name: str) -> None:
    for value in ([1], ["GPipe"], "nothing", "", {"a": 1}, True, -1, 0, 1.5, 3, None):
        is_refused_or_can_be_typed(name, value)


def is_refused_or_can_be_typed(name: str, value: object) -> None:
    try:
        options = PipelineOptions.from_json({**PipelineOptions().to_json(), name: value})
    except ValueError as error:
        told_of = "gradconform pipeline" if name == "command" else "expected "
        assert told_of in str(error), value  # noqa: PT017 (what is not taken is told, and what is taken can be typed)
    else:
        assert asked(shlex.join(options.words())).but(target=options.target) == options, value


@pytest.mark.parametrize("odd", [{"schedule": "GPipe"}, {"seed": [1]}, {"checks": None}, {"device": {"a": 1}}])
def test_options_of_an_invalid_type_are_refused(odd: dict[str, Any]) -> None:
    with pytest.raises(SelectionError, match=r": expected (a list of strings|a string, a number or null|an? \w+)"):
        PipelineOptions.from_json({**PipelineOptions().to_json(), **odd})
