"""How a target of a test finds the process of the command that runs it."""

from __future__ import annotations

#: Source of a function that returns the process id of the command, called in one of its workers. A worker's parent is
#: the command, or the fork server of the command.
COMMAND_OF_A_WORKER = """
def command_of_this_worker():
    parent = os.getppid()
    with open(f"/proc/{parent}/cmdline") as words, open(f"/proc/{parent}/stat") as status:
        return int(status.read().rpartition(")")[2].split()[1]) if "fork_serving" in words.read() else parent
"""
