"""Runs checks on one target, device and dtype, and turns what was found into results."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch

from gradconform.adapter import UnsupportedError
from gradconform.check import Check, Judge
from gradconform.driver import drive
from gradconform.evidence import Evidence
from gradconform.judge.finding import Finding
from gradconform.judge.repeatable import same_bits
from gradconform.materials import Materials
from gradconform.observation import Observation
from gradconform.oracle_cache import OracleCache
from gradconform.plan import DEFAULT_SEED
from gradconform.program import shortened
from gradconform.reference.autograd import AutogradAdapter
from gradconform.results import Result, finite
from gradconform.targets import Target
from gradconform.trial import Trial

#: How many trials keep their evidence, for the next check that reads them.
KEPT = 64


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread, so that sums are added in one order whatever machine and worker; set back afterwards."""
    threads = torch.get_num_threads()
    if threads == 1:  # setting it takes longer than a small check
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class RefusedError(UnsupportedError):
    """The adapter raised ``UnsupportedError`` while it was driven."""


class AdapterError(Exception):
    """An adapter of somebody's own fails its pre-flight: nothing can be judged through it."""


class OracleError(Exception):
    """Plain autograd raised: the device or dtype cannot do what the trial asks."""


class Runner:
    """Runs checks on one target, device and dtype. Each trial is run once and judged by all checks that read it."""

    def __init__(  # noqa: PLR0913 (what is judged, where, and how much is done about it)
        self,
        target: Target,
        *,
        device: torch.device,
        dtype: torch.dtype,
        seed: int = DEFAULT_SEED,
        probe: bool = False,
        diagnose: bool = True,
        oracles: OracleCache | None = None,
    ) -> None:
        """Keep what is judged, and where.

        ``probe`` tries what is not claimed as well (profile ``full``), ``diagnose`` looks for the likely cause of a
        wrong value, and ``oracles`` holds what runners of other targets have computed of plain autograd.
        """
        self._diagnose, self._oracles = diagnose, oracles
        self.target, self.device, self.dtype, self.seed, self.probe = target, device, dtype, seed, probe
        self._oracle = AutogradAdapter()
        self._evidence: dict[Trial, Evidence] = {}
        self._preflight: str | None = None
        self._preflight_done = False

    def run(self, check: Check) -> Result:
        """Return the verdict on one check. Never raises for what the target does."""
        started = time.perf_counter()
        headrooms: list[float] = []
        repeats: list[bool] = []
        try:
            with one_thread():
                values = self._values(check, headrooms, repeats)
        except RefusedError as error:
            values = self._refused(check, error)
        except UnsupportedError as error:
            values = {"status": "unsupported", "message": f"not supported: {error}"}
        except OracleError as error:
            values = {"status": "unsupported", "message": f"plain autograd on this device raised {error}"}
        except SystemExit as error:  # else the target would choose this process's exit code, 0 for one
            values = {"status": "error", "kind": "adapter", "message": f"the target ended the process: {error!r}"}
        except Exception as error:  # noqa: BLE001 (a crash of the kit is a verdict of its own, never a pass)
            text = "".join(traceback.format_exception(error)[-3:]).strip()
            values = {"status": "error", "kind": "kit", "message": f"the kit failed: {text}"}
        return Result(
            check=check.id,
            level=values.pop("level", check.level),
            device=str(self.device),
            dtype=str(self.dtype).removeprefix("torch."),
            requirement=check.requirement,
            duration_s=round(time.perf_counter() - started, 6),
            headroom=finite(max(headrooms)) if headrooms else None,
            bit_equal=not any(headrooms) if headrooms else None,
            repeats_bit_equal=all(repeats) if repeats else None,
            **values,
        )

    def _values(self, check: Check, headrooms: list[float], repeats: list[bool]) -> dict[str, Any]:
        unmet = [*check.unmet(self.target.capabilities), *self._place_unmet()]
        if unmet and not self.probe:
            return {"status": "unsupported", "message": f"not claimed: {', '.join(unmet)}"}
        problem = self._adapter_problem()
        if problem is not None and not self._place_unmet():  # a dtype or device that is not claimed may be refused
            return {"status": "error", "kind": "adapter", "message": problem}
        findings: list[Finding] = []
        silent: list[Finding] = []
        for trial in check.trials:
            evidence = self.evidence(trial)
            before = len(evidence.headrooms)
            found = list(check.judge(evidence))
            findings += found
            silent += [] if any(finding.kind == "error" for finding in found) else found
            headrooms += evidence.headrooms[before:]
            same = same_bits(evidence)
            repeats += [] if same is None else [same]
        if unmet:
            return _probed(unmet, findings, silent)
        if not findings:
            return {"status": "passed"}
        return {
            "status": "failed",
            "kind": findings[0].kind,
            "message": message(check, findings),
            "findings": tuple(_as_json(finding) for finding in findings),
        }

    def _refused(self, check: Check, error: RefusedError) -> dict[str, Any]:
        """Return the verdict on a refusal: of what is not claimed it is fine, a claim refused is a claim not met."""
        unmet = [*check.unmet(self.target.capabilities), *self._place_unmet()]
        if unmet:
            return {"status": "unsupported", "message": f"not claimed: {', '.join(unmet)}; tried, and refused"}
        asked = ", ".join(sorted(check.needs)) or "nothing in particular"
        text = f"claimed, but refused: {error}; support it, or withdraw the claim to one of: {asked}"
        return {"status": "failed", "kind": "refused", "message": text}

    def _place_unmet(self) -> list[str]:
        claims = self.target.capabilities
        dtype, device = str(self.dtype).removeprefix("torch."), self.device.type
        unmet = [f"dtype {dtype}"] if claims.dtypes is not None and dtype not in claims.dtypes else []
        return [*unmet, f"device {device}"] if claims.devices is not None and device not in claims.devices else unmet

    def findings(self, trial: Trial, judge: Judge) -> list[Finding]:
        """Return what one trial that belongs to no check shows.

        Raises :class:`UnsupportedError` where it is refused, :class:`OracleError` where plain autograd cannot do it,
        and :class:`AdapterError` where an adapter of somebody's own fails its pre-flight.
        """
        with one_thread():
            problem = self._adapter_problem()
            if problem is not None:
                raise AdapterError(problem)
            return list(judge(self.evidence(trial)))

    def evidence(self, trial: Trial) -> Evidence:
        """Return the evidence of a trial, from plain autograd and the implementation in turn; kept for later checks."""
        if trial in self._evidence:
            return self._evidence[trial]
        materials = Materials(trial, dtype=self.dtype, device=self.device, seed=self.seed)
        divided = self.target.capabilities.loss_divided_by_microbatches
        scale = 1.0 / trial.microbatches() if trial.loss and divided else 1.0
        oracle = self._oracle_of(materials, scale)
        observations = self._observe(materials, trial.repeats)
        again = self._oracle_of(materials, scale, again=True) if trial.repeats > 1 else None
        evidence = Evidence(trial, self.target.capabilities, materials, observations, oracle, scale, again)
        evidence.diagnose = self._diagnose
        if self._oracles is not None:
            evidence.known = self._oracles.grads(materials, scale)
        if len(self._evidence) >= KEPT:
            del self._evidence[next(iter(self._evidence))]
        self._evidence[trial] = evidence
        return evidence

    def _oracle_of(self, materials: Materials, scale: float, *, again: bool = False) -> Observation:
        """Return plain autograd's observation, from the cache where there is one."""
        if self._oracles is None:
            return self._observe_oracle(materials, scale)
        return self._oracles.observation(materials, scale, lambda: self._observe_oracle(materials, scale), again=again)

    def _observe_oracle(self, materials: Materials, scale: float) -> Observation:
        try:
            oracle = drive(self._oracle, materials, loss_scale=scale)
        except NotImplementedError as error:
            raise OracleError(str(error)) from error
        if oracle.raised is not None:
            msg = f"{oracle.raised.raised} at {oracle.raised.action}"
            raise OracleError(msg)
        return oracle

    def _observe(self, materials: Materials, repeats: int) -> tuple[Observation, ...]:
        """Run the implementation ``repeats`` times; what is allocated in between moves the next run's addresses."""
        observations: list[Observation] = []
        ballast: list[object] = []
        for count in range(repeats):
            ballast += [object() for _ in range(37 * count % 101)]
            observations.append(self._drive(materials))
        del ballast
        return tuple(observations)

    def _drive(self, materials: Materials) -> Observation:
        try:
            return drive(self.target.adapter, materials)
        except UnsupportedError as error:
            raise RefusedError(str(error)) from error

    def _adapter_problem(self) -> str | None:
        """Return why an adapter of somebody's own fails its pre-flight, or None; done once."""
        if not self._preflight_done:
            self._preflight = self._fly() if self.target.own_adapter else None
            self._preflight_done = True
        return self._preflight

    def _fly(self) -> str | None:
        from gradconform.preflight import preflight  # noqa: PLC0415 (it uses this class)

        return preflight(self)


def message(check: Check, findings: list[Finding]) -> str:
    """Return what was seen, one line per wrong tensor, with the programs that showed it."""
    programs = " | ".join(shortened(trial.program) for trial in check.trials)
    return "\n".join([f"program {programs}", *map(str, findings)])


def _probed(unmet: list[str], findings: list[Finding], silent: list[Finding]) -> dict[str, object]:
    """Return the verdict on what is not claimed: refusing is fine, a silent wrong number is a failed SHOULD.

    ``silent`` are the findings of the trials that refused nothing.
    """
    claim = f"not claimed: {', '.join(unmet)}"
    if not silent:
        return {"status": "unsupported", "message": f"{claim}; tried, and {'refused' if findings else 'right'}"}
    lines = [f"{claim}; tried, and wrong without a word", *map(str, silent)]
    return {
        "status": "failed",
        "level": "SHOULD",
        "kind": silent[0].kind,
        "message": "\n".join(lines),
        "findings": tuple(_as_json(finding) for finding in silent),
    }


def _as_json(finding: Finding) -> dict[str, object]:
    values = asdict(finding)
    return {**values, **{name: finite(values[name]) for name in ("error", "bound", "headroom")}}
