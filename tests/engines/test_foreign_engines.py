"""Engines of other packages: found by their entry point, tried once, left out with the reason.

The engine is the one that docs/guides/engine.md shows.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import coexec
from coexec.cli import main
from coexec.cli.decisions import candidate_lines
from coexec.engines.detect import usable_cores
from coexec.engines.names import whole_cpu
from coexec.engines.registry import describe, processors
from coexec.errors import DeviceError, InfeasibleError, first_line
from coexec.rules import Rules
from coexec.selection.chooser import Chooser
from coexec.selection.configurations import configurations
from coexec.selection.decision import Decision
from coexec.selection.race import Lap, Outcome
from coexec.settings import Settings
from tests.helpers.distributions import write_distribution
from tests.helpers.engine_packages import forget_engines
from tests.helpers.small_models import branches, from_nodes, tensor_info

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "engine.md"
CPU = f"cpu:{usable_cores()[0]}"
Install = Callable[..., None]


def shown() -> str:
    """The package that the docs show."""
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    return str(code)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package with an engine: what the docs show, with texts replaced."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    module = f"slow_{tmp_path.name}"  # of each test its own, as modules stay imported

    def installed(*replaced: tuple[str, str]) -> None:
        code = shown()
        for old, new in replaced:
            assert code.count(old) == 1, old
            code = code.replace(old, new)
        write_distribution(tmp_path, module, "1.5", code, "coexec.engines", "slow:Slow")
        monkeypatch.syspath_prepend(tmp_path)
        forget_engines()

    yield installed
    monkeypatch.undo()
    forget_engines()


def products() -> object:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "m"),
        helper.make_node("Relu", ["h"], ["y"], "r"),
    ]
    weight = np.random.default_rng(0).standard_normal((16, 300)).astype(np.float32)
    outputs = [tensor_info("y", [4, 300])]
    return from_nodes(nodes, [tensor_info("x", [4, 16])], outputs, {"w": weight})


# Plans are compared with NaN and infinity among the inputs: some builds of NumPy warn of these.
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_it_is_used_like_ours(install: Install, tmp_path: Path) -> None:
    install()
    words = {"cache": tmp_path / "cache", "planner": "single"}
    x = np.random.default_rng(1).standard_normal((4, 16)).astype(np.float32)
    found = []
    for name in (f"{CPU}/slow", CPU):
        with coexec.InferenceSession(products(), devices=[name], **words) as session:
            found.append(session.run(None, {"x": x})[0])
            found.append(session.coexec_router.running.prepared.plan.places[0].engine)
    assert found[1::2] == ["slow", "onnxruntime"]
    both = words | {"devices": [f"{CPU}/slow", CPU], "planner": "heft"}
    with coexec.InferenceSession(branches(), **both) as session:  # it lacks Conv
        assert session.degraded is None and session.devices == (CPU,)
    np.testing.assert_allclose(found[0], found[2], rtol=1e-5, atol=1e-5)
    with pytest.raises(InfeasibleError, match=r"slow does not run .*: there is no Conv here"):
        coexec.InferenceSession(branches(), devices=[f"{CPU}/slow"], strict=True, **words)


def test_it_is_tried_once_for_all_cores(install: Install, tmp_path: Path) -> None:
    install()
    (cpu,) = processors("cpu")
    assert next(iter(cpu.by)) == "onnxruntime" and cpu.by["slow"].unusable is None
    for core in usable_cores()[:2]:
        engine = describe(f"cpu:{core}/slow").engine
        assert engine.name == "slow" and engine.version.startswith("onnx ")
    memos = [json.loads(f.read_text()) for f in (tmp_path / "home/coexec/trials").glob("*.json")]
    (own,) = [memo for memo in memos if memo["facts"].get("engine") == "slow"]
    assert own["failure"] == "" and "1.5" in own["facts"]["version"]
    assert (f"{CPU}/slow",) in configurations([CPU])


BROKEN = {
    "cannot be imported": ([("import numpy as np", "import no_such_module")], "cannot be imported"),
    "no engine": ([("class Slow(Engine)", "class Slow")], "is no subclass of"),
    "another name": ([('name = "slow"', 'name = "fast"')], "is no subclass of .* with this name"),
    "wrong numbers": ([("tensor[...] = result", "tensor[...] = 0")], "gave wrong numbers"),
    "fails": ([("tensor[...] = result", "raise KeyError(1)")], "failed .KeyError: 1"),
    "crashes": ([("tensor[...] = result", "import os; os.abort()")], "crashed its process .Abort"),
    "opens no engine": ([("return OnDevice(device, info)", "return info")], "no OpenEngine"),
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("fault", BROKEN)
def test_one_that_is_broken_is_left_out_with_the_reason(
    fault: str, install: Install, capfd: pytest.CaptureFixture[str]
) -> None:
    replaced, reason = BROKEN[fault]
    install(*replaced)
    with pytest.raises(DeviceError, match=reason) as caught:
        describe(f"{CPU}/slow")
    assert "slow" in str(caught.value) and first_line(caught.value) == str(caught.value)
    assert not any("slow" in name for names in configurations([CPU]) for name in names)
    assert describe(CPU).engine.name == "onnxruntime"
    assert main(["devices"]) == 0
    rows = [row for row in capfd.readouterr().out.splitlines() if re.search(reason, row)]
    assert len([row for row in rows if "slow" in row]) == 1
    assert main(["run", "zoo:squeezenet", "--devices", f"{CPU}/slow", "--planner", "single"]) == 3
    (line,) = capfd.readouterr().err.strip().splitlines()
    assert "reinstall its package" in line


NPUS = """    def processors(self, kind):
        return [Processor(kind, "First"), Processor(kind, "Second", "2")]

    def open("""
DRIVES_NPUS = (
    ('    name = "slow"\n', '    name = "slow"\n    kinds = ("npu",)\n'),
    ("    def open(", NPUS),
    ("import Engine, OpenEngine", "import Engine, OpenEngine, Processor"),
)


def test_a_processor_that_only_it_drives(install: Install) -> None:
    """Its trial must find the processor without a trial."""
    install(*DRIVES_NPUS)
    assert {d.name: d.title for d in processors("npu")} == {"npu:0": "First", "npu:1": "Second"}
    assert all(d.usable == ("slow",) for d in processors("npu"))
    assert str(describe("npu:1").place) == "npu:1/slow"
    with pytest.raises(DeviceError, match=r"'npu:2' does not exist.*npu:0 .First., npu:1 .Second"):
        describe("npu:2")
    with pytest.raises(DeviceError, match="engine 'slow' does not drive 'cpu:"):
        describe(f"{CPU}/slow")


# Plans are compared with NaN and infinity among the inputs: some builds of NumPy warn of these.
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_auto_considers_a_processor_that_only_it_drives(install: Install, tmp_path: Path) -> None:
    install(*DRIVES_NPUS)
    considered = configurations()
    assert {("npu:0",), ("npu:1",), ("npu:0", "npu:1"), (whole_cpu(), "npu:0", "npu:1")} <= set(
        considered
    )
    assert configurations(["npu:1"]) == [("npu:1",)]

    def last_is_fastest(turns: Iterable[int], *_: Any, **__: Any) -> Outcome[int]:
        return Outcome({which: [Lap((1 / (1 + which),), (1 / (1 + which),))] for which in turns})

    settings = Settings(cache=tmp_path / "cache", rules=Rules(further_engines=False))
    choice = Chooser(products(), settings, compete=last_is_fastest).go_on(alone=True)
    taken = choice.candidates[0]
    assert (taken.devices, taken.engines, taken.status) == (("npu:1",), ("slow",), "taken")
    assert taken.comparison == "its outputs agree with ONNX Runtime's for 6 inputs"


@pytest.mark.parametrize("fault", ["cannot be imported", "crashes"])
def test_auto_says_why_an_engine_that_fails_is_left_out(
    fault: str, install: Install, tmp_path: Path
) -> None:
    replaced, reason = BROKEN[fault]
    install(*replaced)
    settings = Settings(cache=tmp_path / "cache", rules=Rules(further_engines=False))

    def equal(turns: Iterable[int], *_: Any, **__: Any) -> Outcome[int]:
        return Outcome({which: [Lap((1.0,), (1.0,))] for which in turns})

    decision = Chooser(products(), settings, compete=equal).go_on(alone=True).decision
    assert decision is not None
    assert Decision.from_json(json.loads(json.dumps(decision.to_json()))) == decision
    (line,) = [line for line in candidate_lines(decision) if re.search(reason, line)]
    assert line.startswith("left out") and "slow" in line
    named = replace(settings, devices=[CPU])
    decision = Chooser(products(), named, compete=equal).go_on(alone=True).decision
    assert decision is not None and not decision.failing


def test_a_package_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own engines are found as those of others, so without its metadata there are none."""
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: ())
    forget_engines()
    try:
        with pytest.raises(DeviceError, match="it is not installed in this Python"):
            describe(CPU)
    finally:
        forget_engines()
