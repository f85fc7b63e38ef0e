"""A program with an execution provider of its own: its session is the reference and one candidate.

A provider that every package has, for the operators of remote servers, stands for that of a GPU,
and an engine on CPU cores for the engine of it.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import coexec
from coexec.engines import registry
from coexec.engines.base import Engine, Processor
from coexec.engines.onnxruntime.device import CpuCluster
from coexec.engines.providers.options import ProviderOptions
from coexec.errors import DegradedWarning, DeviceError
from coexec.hardware.hardware import Device, EngineInfo
from coexec.rules import Rules
from coexec.selection.chooser import Chooser
from coexec.selection.plan_selector import PlanSelector
from coexec.selection.race import Lap, Outcome
from coexec.session import reference
from coexec.session.reference import with_reference, without_reference
from coexec.settings import Effort, Settings
from tests.helpers.small_models import branches

AZURE = ["AzureExecutionProvider", "CPUExecutionProvider"]
CUDA = "CUDAExecutionProvider"
QUICK = Effort(1, 2, 2, budget_s=1)


class StandIn(Engine):
    kinds = ("gpu",)
    rank = 30
    needs_trial = False
    options = ProviderOptions
    installed = "stand-in 1"

    def __init__(self, name: str = "ort-azure") -> None:
        self.name = name

    def processors(self, kind: str) -> list[Processor]:
        return [Processor(kind, "A GPU", "uuid", precisions=("float32", "tf32"))]

    def describe(self, device: Device, options: ProviderOptions) -> EngineInfo:
        return EngineInfo(self.name, "1", precision=options.precision)

    def open(self, device: Device, info: EngineInfo, options: Any, folder: Any) -> CpuCluster:
        return CpuCluster(device, info)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(reference, "_OF_CORES", ("CPUExecutionProvider",))
    entry = next(iter(registry._entries().values()))
    engines = {name: (StandIn(name), entry) for name in ("ort-azure", "ort-other")}
    monkeypatch.setattr(registry, "_of_families", lambda: engines)
    for known in (registry.load_engine, registry._working):
        known.cache_clear()
    yield
    monkeypatch.undo()
    for known in (registry.load_engine, registry._working):
        known.cache_clear()


def race_of(seconds: Callable[[int], float]) -> Any:
    """A race in which each contender takes these seconds, by its index."""

    def compete(rivals: Any, *_: object, **__: object) -> Outcome[int]:
        return Outcome({n: [Lap((seconds(n),), (seconds(n),))] * 5 for n in rivals})

    return compete


@pytest.mark.usefixtures("gpu", "quick_choice")
@pytest.mark.parametrize("fastest", ["the reference", "others"])
def test_the_users_session_is_the_reference_and_one_candidate(fastest: str, tmp_path: Path) -> None:
    settings = Settings(reference="ort-azure:0", cache=tmp_path, effort=QUICK)
    sign = 1 if fastest == "the reference" else -1
    race = race_of(lambda number: 0.01 + sign * 1e-3 * number)
    chosen = Chooser(branches(), settings, compete=race).make()
    assert chosen.decision is not None
    users = "gpu:0 (ONNX Runtime's own session)"
    assert chosen.decision.reference == users
    taken, *others = chosen.decision.candidates
    if fastest == "the reference":
        assert str(taken) == users and chosen.plan.as_given
        assert taken.comparison is None  # it is not compared with another session
    else:
        assert str(taken) != users and users in map(str, others)
        assert taken.comparison is not None
    assert any(str(row).startswith("cpu:") for row in (taken, *others))


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("own", ["float32", "tf32"])
def test_plans_may_be_as_precise_as_the_users_session(own: str, tmp_path: Path) -> None:
    settings = Settings(
        reference="ort-azure:0",
        engine_options={"ort-azure": {"precision": own}},
        cache=tmp_path,
        effort=QUICK,
        rules=Rules(rounds=(1, 1), starts=1, planners="heft", busy=9.0, stolen=9.0),
    )
    chosen = Chooser(branches(), settings, compete=race_of(lambda number: 1.0)).make()
    assert chosen.decision is not None
    tried = {name for row in chosen.decision.candidates for name in row.devices}
    assert ("gpu:0/ort-other:tf32" in tried) == (own == "tf32")
    assert "gpu:0/ort-azure:tf32" not in tried  # the session itself


@pytest.mark.usefixtures("gpu", "quick_choice")
def test_without_the_users_session_nothing_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise DeviceError("no memory left on the GPU")

    monkeypatch.setattr(StandIn, "open", fails)
    settings = Settings(reference="ort-azure:0", cache=tmp_path, effort=QUICK)
    with pytest.raises(
        DeviceError, match=r"session of gpu:0, which does not start: no memory left"
    ):
        Chooser(branches(), settings, compete=race_of(lambda number: 1.0)).make()


@pytest.mark.usefixtures("gpu", "quick_choice")
def test_a_program_with_a_provider_is_planned(tmp_path: Path) -> None:
    expected = ort.InferenceSession(branches().SerializeToString(), providers=AZURE)
    feeds = {
        i.name: np.ones([d if isinstance(d, int) else 1 for d in i.shape], np.float32)
        for i in expected.get_inputs()
    }
    session = coexec.InferenceSession(branches(), providers=AZURE, background=False, cache=tmp_path)
    assert session.get_providers()[:2] == AZURE or not session.coexec_router.ort.is_open
    assert session.decision is not None and session.decision.reference is not None
    assert session.decision.reference.startswith("gpu:0")
    for a, b in zip(session.run(None, feeds), expected.run(None, feeds), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    session.set_providers(["CPUExecutionProvider"])
    assert "a session of the providers before" in str(session.degraded)
    assert session.run(None, feeds)[0].shape == expected.run(None, feeds)[0].shape


def test_a_provider_without_an_engine_leaves_the_users_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "_OF_CORES", ("CPUExecutionProvider",))
    session = coexec.InferenceSession(branches(), providers=AZURE, cache=tmp_path)
    assert "ONNX Runtime runs it with AzureExecutionProvider" in str(session.degraded)
    assert session.get_providers() == AZURE


@pytest.mark.usefixtures("gpu")
def test_a_device_that_cannot_be_used_leaves_the_users_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StandIn, "processors", lambda self, kind: [])
    with pytest.warns(DegradedWarning, match=r"ort-azure lists 0 .*in the program's own session"):
        session = coexec.InferenceSession(
            branches(), providers=AZURE, background=False, cache=tmp_path
        )
    assert "engine ort-azure lists 0 devices, and not number 0" in str(session.degraded)
    assert session.get_providers() == AZURE


@pytest.mark.filterwarnings("ignore:Specified provider:UserWarning")
def test_a_provider_that_onnx_runtime_leaves_out_is_planned_for_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package has the provider, and the machine has no such GPU: ONNX Runtime uses the CPU."""
    found = [*ort.get_available_providers(), CUDA]
    monkeypatch.setattr(reference, "get_available_providers", lambda: found)
    monkeypatch.setattr(reference, "engine_names", lambda: ["ort-cuda"])
    with coexec.InferenceSession(branches(), providers=[CUDA], cache=tmp_path) as session:
        assert session.get_providers()[0] == "CPUExecutionProvider"
        assert session.coexec_router.settings == Settings(cache=tmp_path)


def test_providers_for_cores_change_nothing(tmp_path: Path) -> None:
    assert with_reference(Settings(), AZURE, None) is None
    session = coexec.InferenceSession(branches(), providers=AZURE, cache=tmp_path)
    assert "still being made" in str(session.degraded)
    session.close()


def with_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package has these providers, and so their engines."""
    names = [CUDA, "TensorrtExecutionProvider", "DmlExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(reference, "get_available_providers", lambda: names)
    engines = ["ort-cuda", "ort-tensorrt", "ort-dml"]
    monkeypatch.setattr(reference, "engine_names", lambda: engines)


def of(*providers: Any, options: Any = None, **words: Any) -> Settings | None:
    return with_reference(Settings(**words), providers, options)


def test_settings_follow_the_options_of_a_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    with_providers(monkeypatch)
    plain = of(CUDA, "CPUExecutionProvider")
    assert plain is not None and plain.reference == "ort-cuda:0"
    assert plain.engine_options == {"ort-cuda": {"precision": "tf32", "options": ""}}
    assert without_reference(plain) == Settings()
    exact = of((CUDA, {"use_tf32": 0, "device_id": 1}))
    assert exact is not None and exact.reference == "ort-cuda:1"
    assert exact.engine_options["ort-cuda"] == {"precision": "float32", "options": "use_tf32=0"}
    listed = of(CUDA, "CPUExecutionProvider", options=[{"use_tf32": "0"}, {}])
    assert listed is not None and listed.engine_options["ort-cuda"]["precision"] == "float32"
    other = of("DmlExecutionProvider")
    assert other is not None and other.engine_options["ort-dml"]["precision"] == "float32"
    own = of(CUDA, engine_options={"ort-cuda": {"cuda_graph": "false"}})
    assert own is not None and own.engine_options["ort-cuda"]["cuda_graph"] == "false"


def test_what_cannot_be_planned_beside_a_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    with_providers(monkeypatch)
    assert of("TensorrtExecutionProvider", CUDA) is None  # one of them is the other's fallback
    assert of((CUDA, {"user_compute_stream": "94035"})) is None
    assert of((CUDA, {"path": "a;b"})) is None
    for refused in ((CUDA,), (CUDA, None), (CUDA, "use_tf32=0"), (CUDA, {}, {})):
        assert of(refused) is None  # by ONNX Runtime, with its own error
    assert of(CUDA, options=["use_tf32"]) is None and of(CUDA, options=3) is None
    assert of(CUDA, planner="heft") is None
    assert of(CUDA, devices=["cpu:0"]) is None
    assert of("CPUExecutionProvider") is None


@pytest.mark.usefixtures("gpu", "quick_choice")
def test_where_nothing_is_faster_the_programs_session_answers(tmp_path: Path) -> None:
    race = race_of(lambda number: 0.01 + 1e-3 * number)
    settings = Settings(reference="ort-azure:0", cache=tmp_path, effort=QUICK)
    Chooser(branches().SerializeToString(), settings, compete=race).make()
    selector = PlanSelector(branches().SerializeToString(), settings)
    selector.start_now(())
    assert selector.state(()).is_decided and selector.running(()) is None
    selector.close()
