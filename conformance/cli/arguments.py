"""The command's parser: each command adds its own arguments. Nothing here imports torch."""

from __future__ import annotations

import argparse

from gradconform.cli.bundling import add_bundle_commands
from gradconform.cli.checks import add_contract_commands
from gradconform.cli.comparing import add_compare
from gradconform.cli.doctor import add_doctor
from gradconform.cli.fuzzing import add_fuzz
from gradconform.cli.init import add_init
from gradconform.cli.merging import add_merge
from gradconform.cli.parsing import EXAMPLES, EXIT_CODES, Parser
from gradconform.cli.pipeline import add_pipeline
from gradconform.cli.replay import add_replay
from gradconform.cli.report import add_report
from gradconform.cli.run import add_run
from gradconform.cli.schedule_text import add_schedule_text
from gradconform.cli.selftest import add_selftest
from gradconform.cli.stage_objects import add_stage_objects
from gradconform.cli.waivers import add_waivers_command
from gradconform.version import CONTRACT_VERSION, KIT_VERSION

#: In the order of the help.
_COMMANDS = (
    add_run,
    add_init,
    add_replay,
    add_contract_commands,
    add_fuzz,
    add_selftest,
    add_pipeline,
    add_schedule_text,
    add_stage_objects,
    add_merge,
    add_compare,
    add_report,
    add_waivers_command,
    add_bundle_commands,
    add_doctor,
)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command; ``command`` of what it parses is the function to call."""
    top = Parser(
        prog="gradconform",
        description="Judge a stage backward: the backward pass of one pipeline-parallel stage, full or split.",
        epilog=f"{EXAMPLES}\n{EXIT_CODES}",
    )
    top.add_argument("--version", action="version", version=f"gradconform {KIT_VERSION}, contract {CONTRACT_VERSION}")
    found = top.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    for add in _COMMANDS:
        add(found)
    return top
