"""Writes a trial as one Python file that needs only torch and the implementation."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gradconform.contract.check import Check
from gradconform.contract.plan import Item
from gradconform.devices.dtypes import dtype_named
from gradconform.devices.registry import registered_entries
from gradconform.exits import UsageError
from gradconform.run.run import Run
from gradconform.target.functions import FunctionsAdapter
from gradconform.target.resolve import Target, registered_targets
from gradconform.tolerance import floor_factor
from gradconform.trial.materials import Materials
from gradconform.trial.program import shortened
from gradconform.trial.trial import Trial
from gradconform.version import CONTRACT_VERSION, KIT_VERSION

from . import standalone
from .folding import Folding
from .inputs import Inputs
from .judges import beyond, compared
from .known_values import entries, known, lanes, loss_scale
from .layout import docstring, folded, merged, spaced
from .session_script import SessionScript
from .short_script import ShortScript
from .source import Source, reached

#: The packages that make a type of device usable, where the kit's own plugin only imports them.
_PACKAGES = {"xla": "torch_xla", "npu": "torch_npu"}


class ScriptError(UsageError):
    """No script can be written of the check or the target."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The contents of a script: a trial of a check on a target, as it was run."""

    check: Check
    target: Target
    dtype_name: str
    device_name: str
    seed: int
    contract: str = CONTRACT_VERSION
    #: The folder of the script, from which it finds the adapter's file.
    place: Path = Path()
    #: The modules that a user names to make the device usable.
    device_plugins: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the script.

        For an adapter, it opens a session on the stage, as the kit does. Raises :class:`ScriptError` for a check that
        no script can show.
        """
        self._refuse()
        trial, claims, source = self.check.trials[0], self.target.capabilities, Source()
        used = entries(self.check, claims)
        used["ACTS"] |= {"finish"} if self.of_adapter else set()
        facts = {**known(self.check, claims), "ADAPTER": self.of_adapter}
        facts["NESTED"] = self.of_adapter and "nested_output" in trial.needs
        imported = {"gradconform.adapter"} if self.of_adapter else frozenset()
        parts = reached([(standalone, "main")], Folding(facts, used), imported)
        dtype, device = dtype_named(self.dtype_name), torch.device(self.device_name)
        located = {"from pathlib import Path"} if self.of_adapter else set()
        located |= {f"import {module}" for module in self._of_device}
        data = Inputs(trial, Materials(trial, dtype=dtype, device=device, seed=self.seed), parts.names).lines(source)
        lines = [
            self._docstring(trial),
            "",
            "from __future__ import annotations",
            "",
            *merged(parts.imports | source.imports | {"import torch"} | located),
            "",
            *(f"\n{text}\n" for text in source.definitions.values()),
            *data,
            *(f"{name} = {value}" for name, value in self._constants(trial).items() if name in parts.names),
        ]
        if any(re.search(r"\b(nan|inf)\b", line) for line in data):
            lines.insert(lines.index("import torch") + 1, "\nnan, inf = float('nan'), float('inf')")
        run = 'if __name__ == "__main__":\n    sys.exit(main())\n'
        return "\n\n\n".join([folded("\n".join(lines)), *spaced(parts.definitions.values()), run])

    def shortest(self) -> str:
        """Return the script: action by action, or a short run of sessions, if that shows the failure too.

        Otherwise it has the kit's driver. Raises as :meth:`text`.
        """
        usual = self.device_name == "cpu" and self.dtype_name == "float32" and not self.check.judges
        head = tuple(self._paragraphs(self.check.trials[0], values="others than the check was given"))
        short = None
        if usual and self.of_adapter:
            claims, place = self.target.capabilities, self.place
            first, *others = head
            joined = (first, " ".join(others))
            short = SessionScript(self.check, claims, self._where(), self._folder(), place, joined, self.seed).text()
        elif usual:
            short = ShortScript(self.check, self._where(), head, self.seed).text()
        return short or self.text()

    @property
    def of_adapter(self) -> bool:
        """Whether the target is an adapter rather than a set of torch's three functions."""
        return not isinstance(self.target.adapter, FunctionsAdapter)

    @property
    def _of_device(self) -> tuple[str, ...]:
        """Return the modules whose import makes the device known to torch."""
        device_type = self.device_name.partition(":")[0]
        entry = registered_entries().get(device_type)
        usual = _PACKAGES.get(device_type, "" if entry is None else entry.module)
        return self.device_plugins or ((usual,) if usual else ())

    @property
    def needs(self) -> str:
        """Return the requirements of a script in words."""
        more = "".join(f", {module}" for module in self._of_device)
        if self.of_adapter:
            return f"torch{more}, gradconform.adapter and {self.target.text.partition(':')[0]}"
        return f"torch{more} and the implementation alone"

    @property
    def has_script(self) -> bool:
        """Whether a script can be written of it."""
        try:
            self._refuse()
        except ScriptError:
            return False
        return True

    def _refuse(self) -> None:
        if self.check.judges:
            msg = f"--script: {self.check.id} judges {self.check.judges}, not an implementation; omit --script"
            raise ScriptError(msg)
        without = beyond(self.check, self.target.capabilities, self.device_name)
        if without:
            msg = (
                f"--script: {self.check.id} has no script, since a script cannot show {' or '.join(without)}; "
                "omit --script to print the same numbers"
            )
            raise ScriptError(msg)

    def _docstring(self, trial: Trial) -> str:
        kind = "adapter" if self.of_adapter else "implementation"
        use = f"An argument names another {kind}: package.module[:object]."
        *paragraphs, last = self._paragraphs(trial)
        return docstring([*paragraphs, f"{last} {use}"])

    def _paragraphs(self, trial: Trial, values: str = "") -> list[str]:
        name = " ".join(filter(None, (self.target.name, self.target.version)))
        run = f"with torch {torch.__version__} on {name}: {self.device_name} {self.dtype_name}, seed {self.seed}"
        kit = f"contract {self.contract}, as gradconform {KIT_VERSION} ran it"
        letters = "F forward, B backward, I input gradients, W weight gradients"
        drawn = f" The values are {values}." if values else ""
        what = f"This is {self.check.id} ({self.check.level}) of {kit} {run}."
        return [
            self.check.requirement,
            f"{what} The program is {shortened(trial.program, 60)}: {letters}.{drawn}",
            f"It exits with 1 if the implementation is wrong and with 0 if it is right, and needs {self.needs}.",
        ]

    def _constants(self, trial: Trial) -> dict[str, object]:
        """Return the names, other than the values, that the script's code reads."""
        dtype = dtype_named(self.dtype_name)
        return {
            "IMPLEMENTATION": repr(self._where()),
            "FOLDER": f"str(Path(__file__).resolve().parent / {self._folder()!r})",
            "PROGRAM": repr(self._program(trial)),
            "MICROBATCHES": [trial.microbatches(lane) for lane in range(len(trial.stages))],
            "RELEASES_OUTPUTS": any(action.kind == "send" for action in trial.actions),
            "EARLY": self.target.capabilities.input_pass_touches_params,
            "LATE": self.target.capabilities.weight_when == "finish",
            "IN_MODES": f"frozenset({sorted(trial.modes)})",
            "DEVICE": repr(self.device_name),
            "TIED": repr(trial.tied),
            "ALTERING": repr(trial.altering),
            "RAISING": repr(trial.raising),
            "UNSENT": repr(trial.unsent),
            "RECEIVED": repr(trial.received),
            "RETAINED": repr(trial.retained),
            "WEIGHTS": repr(trial.weights),
            "KEPT_LISTS": repr(trial.kept_lists),
            "LANES": lanes(self.check),
            "LOSS_SCALE": loss_scale(trial, self.target.capabilities),
            "REPEATS": trial.repeats,
            "COMPARED": "{" + ", ".join(map(repr, sorted(compared(self.check, self.target.capabilities)))) + "}",
            "TOLERANCE": f"{4 * floor_factor(dtype) * torch.finfo(dtype).eps}  # of the largest element",
        }

    def _where(self) -> str:
        """Return a script's name for the implementation: the module of its functions, or the user's file."""
        adapter = self.target.adapter
        if not isinstance(adapter, FunctionsAdapter):
            where, colon, attribute = self._text().partition(":")
            return f"{Path(where).stem if where.endswith('.py') else where}{colon}{attribute}"
        module = next(iter(adapter.functions.values())).__module__
        if (
            all(function.__module__ == module for function in adapter.functions.values())
            and "gradconform_" not in module
        ):
            return module
        file = Path(self.target.file or self.target.text.partition(":")[0])
        _, colon, attribute = self.target.text.rpartition(":")
        return f"{file.stem}:{attribute}" if colon and attribute not in adapter.functions else file.stem

    def _text(self) -> str:
        """Return the target as a file or a module with an object in it, also for a registered name."""
        return registered_targets().get(self.target.text, self.target.text)

    def _folder(self) -> str:
        """Return the folder of the adapter's file, relative to the script's; that of a module is the current folder."""
        where = self._text().partition(":")[0]
        folder = Path(where).resolve().parent if where.endswith(".py") else Path.cwd()
        return os.path.relpath(folder, self.place.resolve())

    def _program(self, trial: Trial) -> str:
        """Return the program; an adapter's session gets a finish, which no program names."""
        if not self.of_adapter:
            return trial.program
        ended = {action.stage for action in trial.actions if action.kind in {"finish", "close"}}
        lanes = [lane for lane in range(len(trial.stages)) if lane not in ended]
        return " ".join([trial.program, *(f"{lane if len(trial.stages) > 1 else ''}finish" for lane in lanes)])


def failing_trial(run: Run, item: Item) -> Check:
    """Return the check of ``item`` with its smallest trial that fails alone, or its first one if none does.

    Trials that are judged together are compared among themselves.
    """
    alone = [replace(item.check, trials=(trial,), pooled=None) for trial in item.check.trials]
    if len(alone) > 1:
        for check in sorted(alone, key=lambda check: len(check.trials[0].actions)):
            if run.run_item(replace(item, check=check)).status == "failed":
                return check
    return alone[0] if item.check.pooled is None else replace(item.check, trials=item.check.trials[:1])
