"""Stages spread over ranks, compared with the same stage on one process: ``gradconform sharded``."""

from __future__ import annotations

from dataclasses import replace

from gradconform.run.options import OPTIONS as RUN_OPTIONS
from gradconform.run.rank_options import DTYPE, RANKS_SHARE_DEVICE, count_option, device_option, machine_options
from gradconform.run.source import CommandSource
from gradconform.user_input.option import Option, values_class
from gradconform.user_input.values import sharded_profile_named

#: The first part of the id of every check of a sharded stage.
SHARDED = "sharded."

_OPTIONS = (
    Option(
        name="target",
        metavar="STAGE",
        loads_files=True,
        help="a class with the members of gradconform.ShardedStage, as my_layers.py:ColumnRowMLP",
    ),
    Option(
        name="profile",
        metavar="PROFILE",
        unset="quick",
        read=sharded_profile_named,
        check=sharded_profile_named,
        help="run quick (each feature once, on the smallest mesh) or standard (every pair of features, on all meshes)",
    ),
    RUN_OPTIONS["checks"],
    count_option("ranks", "use only meshes of N ranks", unset="those of the stage's meshes"),
    Option(
        name="backward",
        metavar="TARGET",
        check=str,
        unset="plain autograd",
        loads_files=True,
        help="run F, B, I and W by a target, named as for 'gradconform run'",
    ),
    device_option("the stage"),
    RUN_OPTIONS["device_plugins"],
    RANKS_SHARE_DEVICE,
    DTYPE,
    RUN_OPTIONS["seed"],
    count_option("timeout", "stop a row of checks after SECONDS", metavar="SECONDS", default=60, changes="plan"),
    *machine_options("each larger mesh uses"),
    RUN_OPTIONS["shard"],
    replace(RUN_OPTIONS["waivers"], unset="none"),
)


def _area_of(check: str) -> str:
    """Return the area of a check: its kind."""
    return check.rpartition(".")[0]


SOURCE = CommandSource(
    command="sharded",
    help="""Judge a stage that is spread over ranks.

Run a tensor-parallel, context-parallel or expert-parallel stage on several processes, and compare each rank with the
whole stage on one process: outputs, gradients, copies, the clipping norm, buffers, and parameters after steps of SGD.
STAGE is a class that has both forms of the stage, and says how tensors are divided. See docs/my-sharded-stage.md.
""",
    examples="""\
examples:
  gradconform sharded my_layers.py:ColumnRowMLP
  gradconform sharded my_layers.py:ColumnRowMLP --profile standard
  gradconform sharded my_layers.py:ColumnRowMLP --backward mypackage.backward
  gradconform sharded my_layers.py:ColumnRowMLP --checks 'sharded.gradients.*'
""",
    options=_OPTIONS,
    values=values_class(
        "ShardedOptions",
        "The options of ``gradconform sharded``.",
        {one.name: one for one in _OPTIONS},
        command="sharded",
    ),
    area_of=_area_of,
)
