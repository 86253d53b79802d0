"""Whole training steps and schedules on several processes, which torch's launcher starts: ``gradconform pipeline``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gradconform.requirements.clause import word_of
from gradconform.run.options import OPTIONS as RUN_OPTIONS
from gradconform.run.rank_options import DTYPE, RANKS_SHARE_DEVICE, count_option, device_option, machine_options
from gradconform.run.source import CommandSource
from gradconform.user_input.option import Option, OptionValues, values_class
from gradconform.user_input.values import profile_named

if TYPE_CHECKING:
    from typing_extensions import Self

#: The prefix of each training step's id.
STEPS = "step."

#: The options that change a training step's values, which ``gradconform replay`` accepts.
_OF_VALUES = ("target", "device", "device_plugins", "dtype", "seed")


_OPTIONS = (
    Option(
        name="target",
        metavar="TARGET",
        loads_files=True,
        help="a runtime or torch's three functions, named as for 'gradconform run'",
    ),
    Option(
        name="profile",
        metavar="PROFILE",
        unset="quick",
        read=profile_named,
        check=profile_named,
        help="training steps: run quick (the commonest, on two ranks), standard (every pair of features, on up to "
        "four) or full (also on eight)",
    ),
    Option(
        name="schedule",
        metavar="NAME",
        kind="several",
        default=(),
        loads_files=True,
        help="judge a schedule instead of training steps: a torch schedule class, a CSV file in torch's format, or "
        "all; may be repeated",
    ),
    RUN_OPTIONS["checks"],
    count_option("ranks", "schedules: run N processes in total", unset="2"),
    count_option(
        "stages_per_rank",
        "schedules: put K stages on each rank",
        metavar="K",
        unset="2, or 1 if the schedule requires it",
    ),
    count_option("microbatches", "schedules: run M micro-batches per step", metavar="M", unset="four per rank"),
    device_option("the stages"),
    RUN_OPTIONS["device_plugins"],
    RANKS_SHARE_DEVICE,
    DTYPE,
    RUN_OPTIONS["seed"],
    count_option(
        "timeout",
        "stop a check after SECONDS, or four times SECONDS if stages are compiled",
        metavar="SECONDS",
        default=60,
        changes="plan",
    ),
    *machine_options("steps on four ranks use"),
    Option(
        name="fixed",
        kind="switch",
        default=False,
        help="only for target torch: judge torch with the correct split that gradconform.reference.install() puts "
        "into it, and torch as released for comparison",
    ),
    RUN_OPTIONS["shard"],
    replace(RUN_OPTIONS["waivers"], unset="none"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PipelineOptions(OptionValues):
    """The options of ``gradconform pipeline``; without a ``schedule`` whole training steps are judged."""

    def alone(self, check: str) -> Self:
        """Return the options of a run of one check, with only the check's own schedule."""
        named = {name: Path(name).stem if name.endswith(".csv") else name for name in self.schedule}
        own = tuple(name for name, word in named.items() if check.startswith(f"pipeline.{word_of(word)}."))
        return OptionValues.alone(self, check).but(schedule=own or self.schedule)

    @property
    def of_values(self) -> Self:
        """Return only the options that change a training step's values."""
        return type(self)(**{name: getattr(self, name) for name in _OF_VALUES})


if TYPE_CHECKING:

    class PipelineOptions(_PipelineOptions):
        """The options of ``gradconform pipeline``."""

else:
    PipelineOptions = values_class(
        "PipelineOptions",
        _PipelineOptions.__doc__,
        {one.name: one for one in _OPTIONS},
        command="pipeline",
        base=_PipelineOptions,
    )


def _area_of(check: str) -> str:
    """Return the area of a check: all training steps, or one schedule."""
    return STEPS.rstrip(".") if check.startswith(STEPS) else check.rpartition(".")[0]


SOURCE = CommandSource(
    command="pipeline",
    help="""Judge training steps or schedules on several processes.

Run whole training steps on several processes, and compare each rank with one plain process: losses, gradients,
their norm, parameters, buffers. The target is a runtime, or torch's three functions, which then run in torch's
PipelineStage. With --schedule, judge schedules instead: outputs, losses and gradients of a chain of stages.
""",
    examples="""\
examples:
  gradconform pipeline torch              (training steps, on two ranks)
  gradconform pipeline myruntime.py:Runtime --profile standard
  gradconform pipeline torch --schedule all --ranks 2
  gradconform pipeline torch --fixed      (torch with the correct split)
  gradconform pipeline mypackage.backward --schedule ZBVZeroBubble --ranks 4
  gradconform pipeline torch --schedule mine.csv --ranks 2
  gradconform pipeline torch --schedule 1F1B --ranks 8 --nnodes 2 \\
      --rdzv-endpoint node0:29500        (the same command on both machines)
""",
    options=_OPTIONS,
    has_catalogue=True,
    values=PipelineOptions,
    area_of=_area_of,
)
