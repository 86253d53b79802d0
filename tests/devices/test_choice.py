"""Which devices and dtypes a run is on, given what was found; and how workers share the indices."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from gradconform.devices import choice, probe
from gradconform.devices.choice import DeviceChoice, choose, refuse_crowd
from gradconform.devices.prepared import index_of, worker_number
from gradconform.devices.probe import Line, Probe, Request
from gradconform.user_input.values import SelectionError, UnusableDeviceError

WORKS = dict.fromkeys(("float64", "float32", "bfloat16", "float16"), "")
NO_DOUBLE = {**WORKS, "float64": "float64 on npu:0 raised TypeError: none here"}
LINE = Line(requirement="A clone MUST have its own memory", held=False, message="clone_is_apart: it has not")


def works(device: str, dtypes: Mapping[str, str] = WORKS, **limits: Any) -> Probe:
    return Probe(device=device, dtypes=dtypes, facts={"known_limits": limits})


def broken(device: str, reason: str = "torch.ones(2) raised RuntimeError: no", *, unknown: bool = False) -> Probe:
    return Probe(device=device, reason=reason, unknown=unknown)


Found = Mapping["str | None", Sequence[Probe]]


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets what the processes that ask have found, by type of device; what is registered are its types."""

    def set_found(probes: Found) -> list[Request]:
        asked: list[Request] = []

        def probes_of(requests: Iterable[Request], *, fresh: bool) -> list[list[Probe]]:
            assert not fresh
            asked.extend(requests)
            return [list(probes.get(request.type, ())) for request in asked]

        choice._chosen.cache_clear()
        monkeypatch.setattr(choice, "cached_probes", probes_of)
        for module in (choice, probe):
            monkeypatch.setattr(module, "registered_entries", lambda: {n: None for n in probes if n in {"npu", "simx"}})
        return asked

    yield set_found
    choice._chosen.cache_clear()


def test_if_only_the_cpu_is_named_no_device_is_probed(found: Any) -> None:
    asked = found({})
    assert choose(["cpu", "cpu:0"], ["float32,all"]).cells == tuple(
        (device, dtype) for device in ("cpu", "cpu:0") for dtype in ("float32", "float64", "bfloat16", "float16")
    )
    assert asked == []
    assert choose(["cpu"]).as_json is None


def test_a_type_selects_one_device_and_an_asterisk_every_index(found: Any) -> None:
    found({"npu": [works("npu:0"), works("npu:1")]})
    assert choose(["npu"]).devices == ("npu",)
    assert choose(["npu"]).indices == {"npu": ("npu:0", "npu:1")}
    assert choose(["npu:*,cpu"]).devices == ("npu:0", "npu:1", "cpu")
    assert choose(["npu:1"]).indices == {"npu:1": ("npu:1",)}


def test_auto_selects_the_accelerator_then_a_plugin_device_then_the_cpu(found: Any) -> None:
    found({None: [works("cuda:0"), works("cuda:1")], "npu": [works("npu:0")]})
    assert choose(["auto"]).devices == ("cuda:0",)
    found({None: [broken("cuda:0"), works("cuda:1")], "npu": [works("npu:0")]})
    chosen = choose(["auto"])
    assert (chosen.devices, [one.device for one in chosen.skipped]) == (("cuda:1",), ["cuda:0"])
    found({None: [], "npu": [works("npu:0")], "simx": [works("simx:0", simulated=True)]})
    assert choose(["auto"]).devices == ("npu:0",)
    found({None: [], "simx": [works("simx:0", simulated=True)]})
    assert choose(["auto"]).devices == ("cpu",)


def test_all_selects_every_device_and_reports_unusable_ones(found: Any) -> None:
    found({None: [works("cuda:0")], "npu": [broken("npu", "npu is off")], "simx": [works("simx:0", simulated=True)]})
    chosen = choose(["all"])
    assert chosen.devices == ("cpu", "cuda:0", "simx:0")
    assert [(one.device, one.reason) for one in chosen.skipped] == [("npu", "npu is off")]
    assert DeviceChoice.from_dict(json.loads(json.dumps(chosen.to_dict()))) == chosen


@pytest.mark.parametrize("name", ["npu:1", "npu:*", "all,npu:1", "npu"])
def test_a_named_device_must_work(found: Any, name: str) -> None:
    usable = [] if name == "npu" else [works("npu:0")]
    found({None: [], "npu": [*usable, broken("npu:1", "torch.ones(2, device='npu:1') raised RuntimeError: lost")]})
    with pytest.raises(UnusableDeviceError) as raised:
        choose([name])
    assert raised.value.exit_code == 4
    assert "cannot be used: torch.ones(2, device='npu:1') raised RuntimeError: lost; usable here: cpu" in str(
        raised.value
    )


def test_an_unknown_device_type_is_refused_with_a_hint_about_plugins(found: Any) -> None:
    found({"simx": [works("simx:0")], "simy": [broken("simy", "torch.device('simy') raised", unknown=True)]})
    with pytest.raises(UnusableDeviceError, match="use --device-plugin MODULE or a registered name, such as simx"):
        choose(["simy"])


def test_a_named_dtype_must_work_but_all_skips_unusable_dtypes(found: Any) -> None:
    found({None: [works("npu:0", NO_DOUBLE)], "npu": [works("npu:0", NO_DOUBLE)]})
    with pytest.raises(UnusableDeviceError, match=r"dtype 'float64' cannot be used on device 'npu': .*TypeError: none"):
        choose(["cpu", "npu"], ["float32", "float64"])
    chosen = choose(["npu"], ["all"])
    assert [dtype for _, dtype in chosen.cells] == ["float32", "bfloat16", "float16"]
    assert [(one.device, one.dtype) for one in chosen.skipped] == [("npu", "float64")]
    chosen = choose(["all"], ["float64"])
    assert chosen.cells == (("cpu", "float64"),)
    assert [(one.device, one.dtype) for one in chosen.skipped] == [("npu:0", "float64")]


def test_workers_use_the_indices_in_turn() -> None:
    indices = {"npu": ("npu:0", "npu:1"), "npu:1": ("npu:1",)}
    assert [index_of("npu", indices, worker) for worker in range(4)] == ["npu:0", "npu:1", "npu:0", "npu:1"]
    assert {index_of("npu:1", indices, worker) for worker in range(4)} == {"npu:1"}
    assert index_of("cpu", indices, 3) == "cpu"


@pytest.mark.parametrize(("name", "number"), [("gw0", 0), ("gw13", 13), ("master", 0), ("", 0)])
def test_the_worker_number_is_read_from_its_name(name: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", name)
    assert worker_number() == number


def test_the_environment_variable_selects_the_shared_indices(found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADCONFORM_DEVICE_INDICES", "npu:2, npu:0, cuda:1")
    found({"npu": [works("npu:0"), works("npu:1"), works("npu:2")]})
    assert choose(["npu"]).indices == {"npu": ("npu:2", "npu:0")}
    monkeypatch.setenv("GRADCONFORM_DEVICE_INDICES", "npu:7")
    choice._chosen.cache_clear()
    with pytest.raises(
        UnusableDeviceError, match="names 'npu:7', which cannot be used; usable here: npu:0, npu:1, npu:2"
    ):
        choose(["npu"])


def test_more_processes_than_a_device_allows_are_refused(found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found({"npu": [works("npu:0", processes_per_index=1), works("npu:1", processes_per_index=1)]})
    refuse_crowd(choose(["npu"]), 2)
    with pytest.raises(SelectionError, match=r"3 worker processes are too many for device 'npu'\. .* Use -n 2"):
        refuse_crowd(choose(["npu"]), 3)
    with pytest.raises(SelectionError, match=r"2 worker processes are too many for device 'npu:1'\. .* Use -n 1"):
        refuse_crowd(choose(["npu:1"]), 2)
    monkeypatch.setenv("GRADCONFORM_PROCESSES_PER_INDEX", "4")
    refuse_crowd(choose(["npu"]), 8)
    monkeypatch.setenv("GRADCONFORM_PROCESSES_PER_INDEX", "many")
    with pytest.raises(SelectionError, match="expected a whole number of at least 1, got 'many'"):
        refuse_crowd(choose(["npu"]), 1)
