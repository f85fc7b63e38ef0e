"""planner="auto": configurations, choice, memory; and reasons for what was chosen."""

import json
from pathlib import Path

import numpy as np
import pytest
from small_models import branches

from coexec import auto as auto_module
from coexec.auto import Auto
from coexec.cli import main
from coexec.configurations import configurations
from coexec.devices import detect
from coexec.devices.detect import usable_cores
from coexec.errors import DeviceError, UsageError
from coexec.frontend.check import plain_session, worst_difference
from coexec.profile import Effort
from coexec.session import InferenceSession

CORES = usable_cores()[:2]
CPUS = [f"cpu:{core}" for core in CORES]
two_cores = pytest.mark.skipif(len(CORES) < 2, reason="this process may use one core only")
QUICK = Effort(warm_up=1, least=2, most=2)


@two_cores
def test_configurations_of_named_devices() -> None:
    first, second = CPUS
    joined = f"cpu:{CORES[0]}-{CORES[1]}" if CORES[1] == CORES[0] + 1 else (
        f"cpu:{CORES[0]},{CORES[1]}")  # fmt: skip
    assert configurations(CPUS) == [(first, second), (joined,), (first,), (second,)]
    assert configurations([first]) == [(first,)]
    with pytest.raises(DeviceError, match="unknown device 'tpu:0'"):
        configurations(["tpu:0"])


def test_configurations_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "usable_cores", lambda: (0, 1, 2, 3))
    monkeypatch.setattr("coexec.configurations.default_names", lambda: ["cpu:0-3"])
    monkeypatch.setattr("coexec.configurations._gpus", lambda: (["gpu:0"], "gpu:1"))
    singles = ("cpu:0", "cpu:1", "cpu:2", "cpu:3")
    assert configurations() == [
        ("cpu:0-3",), ("cpu:0-1", "cpu:2-3"), singles, ("gpu:0",), ("cpu:0-3", "gpu:0"),
        ("cpu:0-1", "cpu:2-3", "gpu:0"), (*singles, "gpu:0"), ("cpu:0-2", "gpu:1@3"),
    ]  # fmt: skip


@two_cores
def test_the_fastest_is_kept_and_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = branches()
    choice = Auto(model, CPUS, cache=tmp_path, effort=QUICK).choose()
    measured = [c.measured_s for c in choice.candidates if c.measured_s is not None]
    assert measured == sorted(measured) and measured
    assert choice.candidates[0].devices == choice.work.names
    assert any(len(c.devices) == 1 and c.measured_s for c in choice.candidates)

    def again(*_: object) -> None:
        raise AssertionError("it measured again")

    monkeypatch.setattr(auto_module, "_run_in_turns", again)
    same = Auto(model, CPUS, cache=tmp_path, effort=QUICK).choose()
    assert same.plan == choice.plan and same.candidates == choice.candidates
    monkeypatch.undo()
    (file,) = tmp_path.glob("choices/*/choice.json")
    file.write_text(file.read_text()[:40])
    repaired = Auto(model, CPUS, cache=tmp_path, effort=QUICK).choose()
    assert repaired.candidates and json.loads(next(tmp_path.glob("choices/*/*")).read_text())


@two_cores
def test_sessions_choose_by_themselves(tmp_path: Path) -> None:
    model = branches()
    with InferenceSession(model, devices=CPUS, cache=tmp_path) as session:
        feeds = {i.name: np.ones(i.shape, np.float32) for i in session.get_inputs()}
        found = session.run(None, feeds)
    for a, b in zip(found, plain_session(model).run(None, feeds), strict=True):
        assert worst_difference(a, b) < 1e-5


def test_options_are_checked() -> None:
    with pytest.raises(UsageError, match="auto has no option 'top_k'; it has planners, finalists"):
        Auto("zoo:squeezenet", CPUS[:1], {"top_k": 3})


@two_cores
def test_explain_gives_a_reason_for_every_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import onnx

    path = tmp_path / "m.onnx"
    onnx.save(branches(), path)
    arguments = [str(path), "--devices", ",".join(CPUS), "--planner", "heft",
                 "--cache", str(tmp_path / "cache")]  # fmt: skip
    assert main(["explain", *arguments, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["tasks"]
    assert len(rows) == len({r["task"] for r in rows}) > 5
    assert all(r["why"] and r["device"] in CPUS and r["measured_s"] > 0 for r in rows)
    assert main(["explain", *arguments, "--top", "3"]) == 0
    assert "the 3 longest of" in capsys.readouterr().out
    assert main(["explain", *arguments, "--top", "0"]) == 2
