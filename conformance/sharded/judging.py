"""Compares what all ranks of a sharded stage have with the whole stage, a kind of check at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.diagnosis.cause import Cause, Mistake, numbered
from gradconform.diagnosis.norm_over_ranks import NormPart, of_norm
from gradconform.diagnosis.over_ranks import OverRanks, of_copies, of_tensor
from gradconform.drive.reference64 import widen
from gradconform.judge.finding import BIT_EQUAL, Finding, Judged, Measured
from gradconform.judge.values import Known, compare
from gradconform.results import Sort
from gradconform.tolerance import Partials, floor_factor, sizes
from gradconform.trees import equal
from gradconform.trial.mesh import Mesh

from .cases import Row
from .collectives import mismatch
from .layout import Layout, averages, part_or_refuse, partial_dims
from .on_rank import Boundary, Shown, output_layout
from .parts import Part, Parts
from .some_ranks import SomeRanks
from .stage import DescriptionError
from .whole import Oracle, WholeRun, standing_grad


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    """One tensor of the whole stage, and each rank's part of it: what it has, and the positions of the elements."""

    sort: Sort
    where: str
    action: str
    whole: Tensor | None
    wide: Tensor | None
    got: Sequence[tuple[int, Tensor | None, Tensor]]
    partials: Partials = field(default_factory=Partials)
    terms: Callable[[], Partials] | None = None
    before: Mapping[int, Tensor] = field(default_factory=dict)
    contributed: Callable[[WholeRun], Tensor | None] | None = None
    alone: Callable[[WholeRun], Tensor | None] | None = None
    zeros_for_none: bool = False
    mb: int = 0
    others: Callable[[], Mapping[int, Tensor | None]] = dict


class Judge:
    """All ranks of one row against the whole stage."""

    def __init__(  # noqa: PLR0913 (a row, and what all ranks and the whole stage show)
        self,
        stage: Any,
        words: str,
        *,
        mesh: Mesh,
        row: Row,
        oracle: Oracle,
        shown: Sequence[Shown],
        parts: Sequence[Parts],
        whole: nn.Module,
    ) -> None:
        """Store what is compared; nothing is computed before it is needed."""
        self._words, self._mesh, self._row, self._oracle = words, mesh, row, oracle
        self._shown, self._parts, self._whole = shown, parts, whole
        self._boundary = Boundary.of(stage, words, mesh, len(oracle.args_of(0)))
        self._compared_gradients: dict[str, list[Finding | Measured]] = {}
        self._some_ranks = SomeRanks(oracle, mesh, parts, whole, self._positions_of_output, self._cut)

    def judged(self, kind: str) -> Judged:
        """Yield the findings and measurements of a kind of check."""
        judges: Mapping[str, Callable[[], Judged]] = {
            "program": self._program,
            "outputs": self._outputs,
            "input-gradients": self._input_grads,
            "gradients": self._gradients,
            "copies": self._copies,
            "steps": self._steps,
            "norm": self._norm,
            "buffers": self._buffers,
        }
        return judges[kind]()

    def _program(self) -> Judged:
        differs = mismatch([one.calls for one in self._shown], self._mesh)
        if differs:
            yield Finding("error", "the collectives", "the program", differs)

    def _outputs(self) -> Judged:
        plain, wide = self._oracle.plain.outputs, self._oracle.wide.outputs
        reported: set[int] = set()
        for mb, outputs in enumerate(plain):
            for place, whole in enumerate(outputs):
                layout = self._layout_of_output(place)
                got = [
                    (rank, self._shown[rank].outputs[mb][place], self._positions_of_output(mb, place, rank))
                    for rank in range(self._mesh.ranks)
                ]
                tensor = _Tensor(
                    sort="output", where=f"output {place}", action=f"F{mb}", whole=whole, wide=wide[mb][place], got=got,
                    alone=partial(_output, mb, place), mb=mb, others=partial(_of_others, wide, mb, place),
                )  # fmt: skip
                yield from self._once(place, reported, self._compared(tensor, layout))

    def _positions_of_output(self, mb: int, place: int, rank: int) -> Tensor:
        whole = self._oracle.plain.outputs[mb][place]
        return self._positions(whole, self._layout_of_output(place), rank, f"output {place}")

    def _cut(self, rank: int, place: int, whole: Tensor) -> Tensor:
        """Return a rank's part of an argument."""
        what = f"{self._words}: argument {place}"
        return part_or_refuse(whole, self._boundary.args[place], self._mesh, rank, what)

    def _layout_of_output(self, place: int) -> Layout:
        found = self._shown[0].output_layouts[place]
        return output_layout(self._boundary, self._mesh, place, self._words) if found is None else found

    def _input_grads(self) -> Judged:
        plain, wide = self._oracle.plain.input_grads, self._oracle.wide.input_grads
        reported: set[int] = set()
        for mb, grads in enumerate(plain):
            for slot, whole in enumerate(grads):
                arg = self._oracle.args_of(mb)[slot]
                if not isinstance(arg, Tensor):
                    continue
                layout = self._boundary.arg_grads[slot]
                got = [
                    (
                        rank,
                        self._shown[rank].input_grads[mb][slot],
                        self._positions(arg, layout, rank, f"argument {slot}"),
                    )
                    for rank in range(self._mesh.ranks)
                ]
                tensor = _Tensor(
                    sort="input gradient", where=f"input {slot}", action=f"B{mb}", whole=whole, wide=wide[mb][slot],
                    got=got, terms=partial(self._oracle.terms_of_input, mb, slot), zeros_for_none=True,
                    contributed=partial(_input_grad, mb, slot), mb=mb, others=partial(_of_others, wide, mb, slot),
                )  # fmt: skip
                yield from self._once(slot, reported, self._compared(tensor, layout))

    def _once(self, place: int, reported: set[int], judged: Judged) -> Judged:
        """Yield only the first finding on one place, and all measurements."""
        for seen in judged:
            if isinstance(seen, Finding):
                if place in reported:
                    continue
                reported.add(place)
            yield seen

    def _gradients(self) -> Judged:
        for name in self._names:
            yield from self._compared_gradient(name)

    def _gradient(self, name: str) -> _Tensor:
        plain, wide = self._oracle.plain, self._oracle.wide
        of_run = None if self._row.standing == "values" else lambda run: run.grads[name]
        before = {rank: self._shown[rank].local.get(own) for rank, own, _ in self._owners(name)}
        return _Tensor(
            sort="parameter gradient",
            where=name,
            action="the first step",
            whole=plain.grads[name],
            wide=wide.grads[name],
            got=[(rank, self._shown[rank].grads[own], part.positions) for rank, own, part in self._owners(name)],
            partials=plain.partials[name],
            terms=lambda: self._oracle.terms_of_param(name),
            contributed=of_run,
            alone=of_run,
            before={rank: widen(one) for rank, one in before.items() if one is not None},
        )

    def _steps(self) -> Judged:
        plain, wide = self._oracle.plain, self._oracle.wide
        for name in self._names:
            owners = self._owners(name)
            tensor = _Tensor(
                sort="parameter", where=name, action="three steps of SGD", whole=plain.params[name],
                wide=wide.params[name], partials=sizes([plain.params[name]]),
                got=[(rank, self._shown[rank].params[own], part.positions) for rank, own, part in owners],
            )  # fmt: skip
            cause = self._cause_of_gradient(name)
            yield from (
                replace(seen, cause=cause or self._cause_of_norm) if isinstance(seen, Finding) else seen
                for seen in self._compared(tensor)
            )

    def _cause_of_gradient(self, name: str) -> Cause | None:
        """Return the cause of a parameter's wrong gradient, None if it is right."""
        found = next((seen for seen in self._compared_gradient(name) if isinstance(seen, Finding)), None)
        return None if found is None else found.cause or Cause(Mistake.OF_WRONG_GRADIENT)

    def _compared_gradient(self, name: str) -> list[Finding | Measured]:
        if name not in self._compared_gradients:
            self._compared_gradients[name] = list(self._compared(self._gradient(name)))
        return self._compared_gradients[name]

    def _buffers(self) -> Judged:
        plain, wide = self._oracle.plain.buffers, self._oracle.wide.buffers
        names: dict[str, list[tuple[int, str, Part]]] = defaultdict(list)
        for rank, parts in enumerate(self._parts):
            for own, part in parts.buffers.items():
                names[part.whole].append((rank, own, part))
        for name, owners in names.items():
            got = [(rank, self._shown[rank].buffers[own], part.positions) for rank, own, part in owners]
            tensor = _Tensor(
                sort="buffer", where=name, action="the first step", whole=plain[name], wide=wide[name], got=got
            )
            yield from self._compared(tensor)

    def _copies(self) -> Judged:
        """Yield the copies of a parameter that differ in a bit, in gradient or value."""
        for name in self._names:
            groups: dict[tuple[object, ...], list[tuple[int, str]]] = defaultdict(list)
            for rank, own, part in self._owners(name):
                groups[part.key].append((rank, own))
            for same in groups.values():
                found = self._differing(name, same) if len(same) > 1 else None
                if found is not None:
                    yield found
                    break
                if len(same) > 1:
                    yield BIT_EQUAL

    def _differing(self, name: str, same: Sequence[tuple[int, str]]) -> Finding | None:
        for action in ("the first step", "three steps of SGD"):
            read = [one.grads if action == "the first step" else one.params for one in self._shown]
            first_rank, first = same[0]
            one = read[first_rank][first]
            for rank, own in same[1:]:
                other = read[rank][own]
                if not (one is other is None or (one is not None and other is not None and equal(one, other))):
                    text = f"expected equal copies on ranks {first_rank} and {rank}, got {_difference(one, other)}"
                    drift = action != "the first step"
                    own_cause = Cause(Mistake.COPIES_DRIFT if drift else Mistake.COPIES_DIFFER)
                    cause = self._cause_of_gradient(name) or (self._cause_of_norm if drift else None) or own_cause
                    sort: Sort = "parameter" if drift else "parameter gradient"
                    return Finding("mismatch", name, action, text, cause=cause, sort=sort)
        return None

    def _norm(self) -> Judged:
        right, plain = self._oracle.wide.norm, self._oracle.plain.norm
        norms = {rank: one.norm for rank, one in enumerate(self._shown) if one.norm is not None}
        said: set[Cause | None] = set()
        for seen in self._of_norms("the norm", norms, right, 2.0 * abs(plain - right), self._cause_of_norm):
            said |= {seen.cause} if isinstance(seen, Finding) else set()
            yield seen
        for name, drawn in self._drawn_norms.items():
            alone = {rank: one.norms[name] for rank, one in enumerate(self._shown)}
            cause = self._cause_of_norm_alone(name)
            for seen in self._of_norms(f"the norm of {name} alone", alone, drawn, 0.0, cause):
                if not (isinstance(seen, Finding) and cause is not None and cause in said):
                    yield seen

    def _of_norms(
        self, where: str, norms: Mapping[int, float], right: float, noise: float, cause: Cause | None
    ) -> Judged:
        """Yield the measurements of a norm on all ranks, or one finding."""
        bound = noise + 4.0 * floor_factor(self._dtype) * self._eps * right
        wrong = [rank for rank, norm in norms.items() if not abs(norm - right) <= bound]
        if not wrong:
            for norm in norms.values():
                yield Measured(abs(norm - right) / bound if bound else 0.0)
            return
        worst = max(wrong, key=lambda rank: abs(norms[rank] - right))
        error = abs(norms[worst] - right)
        text = (
            f"on {numbered('rank', wrong)}: expected {right:.9g}, got {norms[worst]:.9g}; error {error:.3g}, "
            f"bound {bound:.3g}, error/bound {error / bound if bound else float('inf'):.3g}"
        )
        yield Finding("mismatch", where, "the first step", text, error, bound, None, cause)

    @cached_property
    def _drawn_norms(self) -> dict[str, float]:
        """The right norm of each parameter alone; empty if the stage's norm is of gradients outside ``.grad``."""
        if all(norm == one.norm for one in self._shown for norm in one.norms.values()):
            return {}
        return {name: float(self._drawn_grad(name).norm()) for name in self._shown[0].norms}

    def _drawn_grad(self, name: str) -> Tensor:
        """Return the gradient that a parameter alone has while its norm is asked for, in float64."""
        whole = self._oracle.plain.params[name]
        return standing_grad(whole.shape, name, self._dtype, "values").double()

    def _cause_of_norm_alone(self, name: str) -> Cause | None:
        """Return what is wrong with one parameter's part of the norm; None if nothing is, or the cause is unknown."""
        norms = {rank: one.norms[name] for rank, one in enumerate(self._shown)}
        eps = self._eps
        right = self._drawn_norms[name]
        if all(abs(norm - right) <= 64.0 * eps * right for norm in norms.values()):
            return None
        return of_norm(norms, [self._norm_part(name, self._drawn_grad(name))], self._mesh, eps)

    def _norm_part(self, name: str, grad: Tensor) -> NormPart:
        own = {rank: float(part.of(grad).square().sum()) for rank, _, part in self._owners(name)}
        elements = sum(part.positions.numel() for _, _, part in self._owners(name))
        return NormPart(name, float(grad.square().sum()), own, round(elements / max(grad.numel(), 1)))

    @cached_property
    def _cause_of_norm(self) -> Cause | None:
        norms = {rank: one.norm for rank, one in enumerate(self._shown) if one.norm is not None}
        wide = self._oracle.wide
        eps = self._eps
        if not norms:
            return None
        if all(abs(norm - wide.norm) <= 64.0 * eps * wide.norm for norm in norms.values()):
            return self._first_cause_alone  # too small to be seen in the joint norm, but not in the steps
        causes = [cause for name in self._names if (cause := self._cause_of_gradient(name)) is not None]
        if causes:  # the norm of wrong gradients is wrong as well
            return min(causes, key=lambda cause: cause.kind is Mistake.OF_WRONG_GRADIENT)
        parts = [self._norm_part(name, grad) for name in self._names if (grad := wide.grads[name]) is not None]
        return of_norm(norms, parts, self._mesh, eps) or self._first_cause_alone

    @property
    def _first_cause_alone(self) -> Cause | None:
        causes = (self._cause_of_norm_alone(name) for name in self._drawn_norms)
        return next((cause for cause in causes if cause is not None), None)

    @property
    def _eps(self) -> float:
        dtype = self._dtype
        return torch.finfo(dtype).eps

    @property
    def _dtype(self) -> torch.dtype:
        return next(iter(self._oracle.plain.params.values())).dtype

    @cached_property
    def _names(self) -> list[str]:
        """The whole stage's parameters, each once, by a name that some rank has."""
        first: dict[int, str] = {}
        for name, one in self._whole.named_parameters(remove_duplicate=False):
            first.setdefault(id(one), name)
        return list(first.values())

    def _owners(self, name: str) -> list[tuple[int, str, Part]]:
        """Return the ranks that have a part of a whole parameter, with its name there and the part."""
        same = self._same(name)
        return [
            (rank, own, part)
            for rank, parts in enumerate(self._parts)
            for own, part in parts.params.items()
            if part.whole in same
        ]

    def _same(self, name: str) -> list[str]:
        """Return all names of a whole parameter."""
        tensor = dict(self._whole.named_parameters(remove_duplicate=False))[name]
        return [one for one, other in self._whole.named_parameters(remove_duplicate=False) if other is tensor]

    def _positions(self, whole: Tensor, layout: Layout, rank: int, name: str) -> Tensor:
        positions = torch.arange(whole.numel(), dtype=torch.float64).reshape(whole.shape)
        return part_or_refuse(positions, layout, self._mesh, rank, f"{self._words}: {name}").to(torch.int64)

    def _compared(self, tensor: _Tensor, layout: Layout | None = None) -> Judged:
        """Yield the measurements of a tensor on all ranks, and one finding if it is wrong on some."""
        summed = partial_dims(layout) if layout is not None else ()
        got = _sums(tensor, self._mesh, summed, mean=layout is not None and averages(layout)) if summed else tensor.got
        partials = tensor.partials if tensor.whole is None else tensor.partials.with_(tensor.whole)
        factor = 2.0 if tensor.sort == "parameter" else 1.0  # each step starts from the rounding of those before it
        findings: dict[int, Finding] = {}
        for rank, own, positions in got:
            expected = None if tensor.whole is None else Part("", positions).of(tensor.whole)
            exact = None if tensor.wide is None else Part("", positions).of(tensor.wide)
            if expected is not None and own is not None and own.shape != expected.shape and tensor.sort == "output":
                msg = (
                    f"{self._words}: {tensor.where} has the shape {tuple(own.shape)} on rank {rank}, but its part of "
                    f"the whole has {tuple(expected.shape)}; correct output_placements"
                )
                raise DescriptionError(msg)

            def known(exact: Tensor | None = exact) -> Known:
                return Known(exact, partials, tensor.terms)

            for seen in compare(
                tensor.sort, tensor.where, tensor.action, own, expected, known, factor=factor,
                zeros_for_none=tensor.zeros_for_none,
            ):  # fmt: skip
                if isinstance(seen, Finding):
                    findings.setdefault(rank, seen)
                else:
                    yield seen
        if findings:
            yield self._on_ranks(tensor, got, findings, partials)

    def _on_ranks(
        self,
        tensor: _Tensor,
        got: Sequence[tuple[int, Tensor | None, Tensor]],
        findings: Mapping[int, Finding],
        partials: Partials,
    ) -> Finding:
        """Return one finding for all ranks: that of the worst, with the cause."""
        worst = max(findings, key=lambda rank: findings[rank].error_ratio or 0.0)
        found = findings[worst]
        where = "every rank" if len(findings) == self._mesh.ranks else numbered("rank", sorted(findings))
        cause = self._explain(tensor, got, partials) or found.cause
        return replace(found, text=f"on {where}: {found.text}", cause=cause)

    def _explain(
        self, tensor: _Tensor, got: Sequence[tuple[int, Tensor | None, Tensor]], partials: Partials
    ) -> Cause | None:
        right_of = tensor.wide
        if right_of is None:
            return Cause(Mistake.ZEROS_FOR_NONE) if all(one is None or not one.any() for _, one, _ in got) else None
        if not right_of.is_floating_point():
            return None
        right = {rank: Part("", positions).of(right_of).double() for rank, _, positions in got}
        over = OverRanks(
            mesh=self._mesh,
            got={rank: one for rank, one, _ in got},
            right=right,
            eps=self._eps,
            parts=partials.peak,
            before=tensor.before,
            mb=tensor.mb,
            of_others={
                mb: {rank: Part("", positions).of(one).double() for rank, _, positions in got}
                for mb, one in tensor.others().items()
                if one is not None and one.shape == right_of.shape
            },
        )
        try:
            found = of_tensor(over) or of_tensor(replace(over, alone=self._alone(tensor, got)))
            for name, contributions in () if found else self._contributions(tensor, right_of, got):
                found = found or of_tensor(replace(over, contributions=contributions, along=name))
            found = found or self._of_uses(tensor, over)
            if found is None and tensor.sort != "output" and self._outputs_wrong:
                return Cause(Mistake.OF_WRONG_OUTPUT)
            return found or of_copies(over)
        except Exception as error:  # noqa: BLE001 (the tensor is wrong, whatever the diagnosis does)
            return Cause(Mistake.DIAGNOSIS_FAILED, names=(f"{type(error).__name__}: {error}",))

    @cached_property
    def _outputs_wrong(self) -> bool:
        return any(isinstance(seen, Finding) for seen in self._outputs())

    def _of_uses(self, tensor: _Tensor, over: OverRanks) -> Cause | None:
        """Return that only one use of a tied parameter counts."""
        names = self._same(tensor.where) if tensor.sort == "parameter gradient" else []
        if len(names) < 2:  # noqa: PLR2004 (tied)
            return None
        parts = {rank: part for rank, _, part in self._owners(tensor.where)}
        for grad in self._oracle.uses(names):
            if over.agree(over.shown, {rank: parts[rank].of(grad) for rank in over.shown}):
                return Cause(Mistake.USES_MISSING, counts=(1, len(names)))
        return None

    def _contributions(
        self, tensor: _Tensor, right: Tensor, got: Sequence[tuple[int, Tensor | None, Tensor]]
    ) -> Iterator[tuple[str, dict[int, dict[int, Tensor]]]]:
        """Yield mesh dimensions along which contributions sum up to the right tensor, with these, on every rank."""
        if tensor.contributed is None:
            return
        for name, size in self._mesh.sizes.items():
            for runs in (self._some_ranks.by_outputs, self._some_ranks.by_parameters) if size > 1 else ():
                known = [one for run in runs(name) if (one := tensor.contributed(run)) is not None]
                if len(known) == size and torch.allclose(torch.stack(known).sum(0), right.double(), rtol=1e-9):
                    yield (
                        name,
                        {
                            place: {other: Part("", positions).of(one) for other, _, positions in got}
                            for place, one in enumerate(known)
                        },
                    )

    def _alone(self, tensor: _Tensor, got: Sequence[tuple[int, Tensor | None, Tensor]]) -> dict[int, dict[int, Tensor]]:
        """Return what each rank would have for each rank's arguments alone; empty if that is not known."""
        wholes = [] if tensor.alone is None else [tensor.alone(run) for run in self._some_ranks.by_arguments]
        return {
            rank: {other: Part("", positions).of(one.double()) for other, _, positions in got}
            for rank, one in enumerate(wholes)
            if one is not None
        }


def _of_others(of_all: Sequence[Sequence[Tensor | None]], mb: int, place: int) -> dict[int, Tensor | None]:
    """Return what the other micro-batches than ``mb`` have at a place, the nearest first."""
    others = sorted(range(len(of_all)), key=lambda other: abs(other - mb))[1:]
    return {other: of_all[other][place] for other in others}


def _output(mb: int, place: int, run: WholeRun) -> Tensor | None:
    found: Tensor = run.outputs[mb][place]
    return found


def _input_grad(mb: int, slot: int, run: WholeRun) -> Tensor | None:
    return run.input_grads[mb][slot]


def _sums(tensor: _Tensor, mesh: Mesh, along: Sequence[str], *, mean: bool) -> list[tuple[int, Tensor | None, Tensor]]:
    """Return the sum of partial values, on the first rank of each group."""
    by_rank = {rank: (one, positions) for rank, one, positions in tensor.got}
    found: list[tuple[int, Tensor | None, Tensor]] = []
    for group in mesh.groups(along):
        own = [by_rank[rank][0] for rank in group]
        given = [one for one in own if one is not None]
        total: Tensor | None = None
        if given:
            total = torch.stack([one.double() for one in given]).sum(0) / (len(group) if mean else 1)
            total = total.to(given[0].dtype)
        found.append((group[0], total, by_rank[group[0]][1]))
    return found


def _difference(one: Tensor | None, other: Tensor | None) -> str:
    if one is None or other is None:
        return "a tensor on one and None on the other"
    if one.shape != other.shape:
        return f"shapes {tuple(one.shape)} and {tuple(other.shape)}"
    return f"a largest difference of {float((one.double() - other.double()).abs().max()):.3g}"
