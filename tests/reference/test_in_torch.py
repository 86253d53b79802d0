"""The right split in torch's stages: what they call inside a block, and that it is undone exactly."""

from __future__ import annotations

from typing import Any

import pytest

from gradconform.reference import in_torch, install, split
from gradconform.torch_releases import pipelining

RIGHT = {name: getattr(split, name) for name in pipelining.functions()}


def called() -> dict[str, Any]:
    """Return what stages of torch call now, by torch's names."""
    return {name.spellings[0]: name.find() for name in pipelining.CALLED_BY_STAGES}


def test_stages_call_the_right_split_inside_a_block_alone() -> None:
    before = called()
    with in_torch():
        assert called() == RIGHT
    assert called() == before
    assert before != RIGHT


def test_a_block_inside_another_leaves_the_outer_one_as_it_was() -> None:
    before = called()
    with in_torch():
        with in_torch():
            assert called() == RIGHT
        assert called() == RIGHT
    assert called() == before


def test_an_exception_undoes_it_as_well() -> None:
    before = called()
    with pytest.raises(ZeroDivisionError), in_torch():
        _ = 1 // 0
    assert called() == before


def test_what_somebody_else_had_put_there_comes_back() -> None:
    def other() -> None:
        pass

    before = pipelining.put_in_stages({"stage_backward": other})
    try:
        with in_torch():
            assert called() == RIGHT
        assert called()["stage_backward"] is other
    finally:
        pipelining.put_in_stages(before)


def test_installed_it_stays() -> None:
    before = called()
    try:
        install()
        with in_torch():
            pass
        assert called() == RIGHT
    finally:
        pipelining.put_in_stages(before)


def test_a_torch_whose_stages_call_nothing_of_the_name_is_told_and_nothing_is_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = called()
    gone = pipelining.Name("torch.distributed.pipelining.stage", ("no_such_function",), "its PipelineStage calls")
    monkeypatch.setattr(pipelining, "CALLED_BY_STAGES", (*pipelining.CALLED_BY_STAGES, gone))
    with pytest.raises(pipelining.UnavailableError, match="has no no_such_function"):
        install()
    monkeypatch.undo()
    assert called() == before


def test_the_module_gives_no_other_name() -> None:
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        from gradconform.reference import nothing  # type: ignore[attr-defined] # noqa: F401, PLC0415 (that is asked)
