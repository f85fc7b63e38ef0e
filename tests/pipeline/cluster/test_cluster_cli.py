"""`coexec cluster` without Ray: plans, settings, names, tokens, and what bad input gets."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from coexec.cli import main
from coexec.cli.cluster.common import ended_by_signals
from coexec.cli.cluster.frames import Answered, given_frames
from coexec.errors import DeviceError, InputError, UsageError
from coexec.model.load import load
from coexec.pipeline.cluster.build import build
from coexec.pipeline.cluster.nodes import (
    LocalNodes,
    RayNode,
    check_name,
    check_welcome,
    environment,
    make_token,
    own_name,
    split_address,
    start,
    token_file,
)
from coexec.pipeline.cluster.settings import (
    lacking,
    made_up,
    read_settings,
    stated_machines,
)
from coexec.units import format_numbers
from tests.helpers.patience import until
from tests.helpers.small_models import branches, from_nodes, tensor_info
from tests.helpers.user_processes import processes_of

MADE_UP = ["--gflops", "2,1", "--mbit", "50"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who has no token."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("models") / "model.onnx"
    onnx.save(branches(), str(path))
    return str(path)


def refused(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    """What `coexec cluster` says to bad input, or to what cannot be done: one line, and 2 or 3."""
    assert main(["cluster", *words]) in (2, 3)
    said = capfd.readouterr().err
    assert said.startswith("coexec: ") and said.count("\n") == 1, said
    return said


# Plans


def test_a_plan_for_made_up_machines_is_printed_and_written(
    model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["cluster", "plan", model, *MADE_UP, "--cache", str(tmp_path / "cache")]
    path = tmp_path / "plan.json"
    assert main([*words, "--output", str(path)]) == 0
    said = capfd.readouterr().out
    for word in ("planner    pico", "period", "latency", "redundant", "m1", "m2", "weights"):
        assert word in said
    assert main([*words, "--json"]) == 0
    facts = json.loads(capfd.readouterr().out)
    assert facts["plan"] == json.loads(path.read_text())
    assert 0 < facts["period_s"] <= facts["latency_s"]
    assert facts["machines"]["m1"]["flops_per_s"] == 2e9
    assert facts["machines"]["m2"]["bandwidth_bytes_per_s"] == 6.25e6
    busy = [each["utilisation"] for each in facts["machines"].values()]
    assert all(0 <= share <= 1 for share in busy) and max(busy) > 0


def test_a_stated_cluster_is_planned_without_one(
    model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(
        "[network]\nmedium = 'shared'\nbandwidth_mbit_s = 100\nlatency_ms = 1\n"
        "[machines.pi1]\ngflops = 2\n[machines.pi2]\ngflops = 1\n"
    )
    words = ["cluster", "plan", model, "--cluster", str(path), "--cache", str(tmp_path / "cache")]
    assert main([*words, "--json"]) == 0
    assert set(json.loads(capfd.readouterr().out)["machines"]) == {"pi1", "pi2"}
    path.write_text("[machines.pi1]\ngflops = 2\n")
    said = refused(capfd, *words[1:])
    assert f"{path}: neither network.bandwidth_mbit_s nor machines.pi1.bandwidth_mbit_s" in said


def test_a_model_without_maps_becomes_a_chain_of_stages_and_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["cluster", "plan", "zoo:lstm", *MADE_UP, "--cache", str(tmp_path / "cache")]
    assert main(words) == 0
    assert "note       no task of this model can be cut" in capfd.readouterr().out


@pytest.mark.filterwarnings("always::coexec.errors.AssumedWarning")
def test_sizes_that_a_model_leaves_open_are_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "dynamic.onnx")
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    onnx.save(from_nodes([node], [tensor_info("x", ["N", 3])], [tensor_info("y", ["N", 3])]), path)
    cache = ["--cache", str(tmp_path / "cache")]
    assert main(["cluster", "plan", path, *MADE_UP, *cache]) == 0
    assert "--shape x=1,3" in " ".join(capfd.readouterr().err.split())
    assert main(["cluster", "plan", path, *MADE_UP, *cache, "--shape", "N=2"]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--machines", "0", *MADE_UP], "--machines 0"),
        (["--machines", "1", *MADE_UP], "--gflops has 2 values for 1 machines"),
        (["--gflops", "x", "--mbit", "1"], "--gflops 'x'"),
        (["--gflops", "1", "--mbit", "0"], "--mbit '0'"),
        (["--gflops", "1", "--mbit", "inf"], "--mbit 'inf'"),
        (["--machines", "3"], "need both --gflops and --mbit"),
        ([*MADE_UP, "--nodes", "2"], "leave --cluster, --nodes and --address out"),
        ([*MADE_UP, "--medium", "wifi"], "'wifi'"),
        ([*MADE_UP, "--planner", "heft"], "no planner 'heft' of pipelines"),
        ([*MADE_UP, "--option", "foo=1"], "has no option 'foo'"),
        ([*MADE_UP, "--option", "rebalance=1"], "wants shares or stages"),
        ([*MADE_UP, "--option", "latency_limit_s=1e-9"], "raise latency_limit_s"),
        ([*MADE_UP, "--output", "/"], "it is a folder"),
        ([], "there is no token"),
        (["--nodes", "0"], "nodes is a number from 1 to 64"),
        (["--nodes", "2", "--address", "h:1"], "a cluster of their own"),
        (["--address", "127.0.0.1:1"], "there is no token"),
    ],
)
def test_what_no_plan_can_be_made_for_is_refused(
    model: str, words: list[str], said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capfd, "plan", model, *words, "--cache", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--frames", "0"], "--frames 0"),
        (["--rate", "0"], "--rate 0"),
        (["--rate", "nan"], "--rate nan"),
        (["--credits", "0"], "credits are at least 1"),
        (["--deadline", "0"], "deadline_s is above 0"),
        (["--planner", "heft"], "no planner 'heft' of pipelines"),
        (["--inputs", "/dev/null"], "cannot read the inputs"),
        (["--trace", "/"], "it is a folder"),
        (["--output", "/"], "it is a folder"),
    ],
)
def test_a_run_is_refused_before_nodes_are_started(
    model: str,
    words: list[str],
    said: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(LocalNodes, "add")
    cache = ["--cache", str(tmp_path / "cache")]
    assert said in refused(capfd, "run", model, "--nodes", "2", *words, *cache)


def test_what_is_no_model_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(LocalNodes, "add")
    path = tmp_path / "model.onnx"
    path.write_bytes(b"no model")
    assert "is not an ONNX model" in refused(capfd, "run", str(path), "--nodes", "2")
    assert "no model 'nope'" in refused(capfd, "bench", "zoo:nope", "--nodes", "2")


def test_the_last_capacity_counts_for_the_rest() -> None:
    machines = made_up(4, [2.0, 1.0], [50.0])
    assert [m.capacity.flops_per_s for m in machines] == [2e9, 1e9, 1e9, 1e9]
    assert [m.name for m in machines] == ["m1", "m2", "m3", "m4"]
    assert {m.bandwidth_bytes_per_s for m in machines} == {6.25e6}


# Settings


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[[", "cannot read"),
        ("x = 1", "the field 'x' is unknown; fields: cluster, network, faults, machines"),
        ("machines = 3", "machines: 3 is not an object"),
        ("cluster = 3", "cluster: 3 is not an object with address"),
        ("[machines]\na = 1", "machines['a']: 1 is not an object"),
        ("[machines.a]\nfoo = 1", "machines['a']: the field 'foo' is unknown"),
        ("[machines.'a b']", "'a b' is no name"),
        ("[machines.a]\ngflops = -1", "machines.a.gflops wants a number above 0, not -1"),
        ("[machines.a]\ngflops = inf", "machines.a.gflops wants a number above 0, not inf"),
        ("[machines.a]\ngflops = nan", "machines.a.gflops wants a number above 0, not nan"),
        ("[machines.a]\ngflops = true", "machines['a'].gflops: True is not a number"),
        ("[machines.a]\npace_gflops = '2'", "machines['a'].pace_gflops: '2' is not a number"),
        ("[machines.a]\nbandwidth_mbit_s = 0", "machines.a.bandwidth_mbit_s wants a number"),
        ("[machines.a]\ndevices = 'cpu:0'", "machines['a'].devices: 'cpu:0' is not a list"),
        ("[machines.a]\ndevices = []", "machines.a.devices wants at least one"),
        ("[machines.a]\ndevices = ['cpu']", "'cpu' is no device"),
        ("[machines.a]\nplanner = 'pico'", "machines.a.planner 'pico' is none of auto"),
        ("[machines.a]\ncache = 1", "machines['a'].cache: 1 is not a text"),
        ("[network]\nmedium = 'wifi'", "network.medium: 'wifi' is not 'ports' or"),
        ("[network]\nlatency_ms = -1", "network.latency_ms wants a number"),
        ("[network]\nspeed = 1", "network: the field 'speed' is unknown"),
        ("[faults]\ngain = 1.5", "faults.gain wants a share below 1"),
        ("[faults]\nsilence_s = 0", "faults.silence_s wants a number"),
        ("[faults]\nsilence = 1", "faults: the field 'silence' is unknown"),
        ("[cluster]\naddress = 'here'", "'here' is no address"),
        ("[cluster]\naddress = 7", "cluster.address: 7 is not a text"),
    ],
)
def test_settings_name_the_file_and_the_key(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as raised:
        read_settings(path)
    assert str(path) in str(raised.value) and said in str(raised.value)


def test_every_key_of_settings_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text("""
        [cluster]
        address = "192.168.1.10:6380"
        [network]
        medium = "half-duplex ports"
        bandwidth_mbit_s = 80
        latency_ms = 0
        [faults]
        silence_s = 1.5
        gain = 0.2
        [machines.a]
        devices = ["cpu:0-3"]
        planner = "single"
        gflops = 8
        bandwidth_mbit_s = 8
        pace_gflops = 2
        cache = "/var/cache"
        [machines.b]
        gflops = 4
        """)
    found = read_settings(path)
    assert found.address == "192.168.1.10:6380" and found.network == "half-duplex ports"
    assert found.latency_s == 0 and found.limits.silence_s == 1.5 and found.limits.gain == 0.2
    assert found.machines["a"].devices == ["cpu:0-3"]
    assert found.machines["a"].pace_flops_per_s == 2e9
    assert lacking(found) is None
    a, b = stated_machines(found)
    assert (a.capacity.flops_per_s, a.bandwidth_bytes_per_s) == (8e9, 1e6)
    assert (b.capacity.flops_per_s, b.bandwidth_bytes_per_s) == (4e9, 1e7)


# Names, addresses, tokens


@pytest.mark.parametrize(
    "name", ["", "a b", "a/b", "../a", "-a", "a-", "ä", "a\n", "a" * 64, "a,b"]
)
def test_names_that_no_machine_can_have(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="no name for a machine"):
        check_name(name)
    assert "no name for a machine" in refused(capfd, "start", f"--name={name}")


def test_the_own_name_is_one() -> None:
    assert check_name(own_name()) == own_name()
    assert check_name("pi-1.local_2") == "pi-1.local_2"


@pytest.mark.parametrize("address", ["", "h", ":1", "h:", "h:x", "h:0", "h:65536", "h:-1", "h:٣"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(UsageError, match="no address of a head"):
        split_address(address)


def test_a_token_is_made_once_and_only_its_user_reads_it(tmp_path: Path) -> None:
    make_token()
    file = token_file()
    assert file == tmp_path / ".ray" / "auth_token"
    token = environment()["RAY_AUTH_TOKEN"]
    assert len(token) == 64
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    make_token()
    assert environment()["RAY_AUTH_TOKEN"] == token
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("variable", ["RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"])
def test_a_token_that_the_user_has_named_is_taken_and_none_is_made(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine"
    path.write_text("a" * 64)
    monkeypatch.setenv(variable, str(path) if variable.endswith("PATH") else "a" * 64)
    make_token()
    assert environment()["RAY_AUTH_TOKEN"] == "a" * 64
    assert not (tmp_path / ".ray").exists()
    other = tmp_path / "other"
    other.write_text("b" * 64)
    assert environment(other)["RAY_AUTH_TOKEN"] == "b" * 64


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe", b"two words", b"two\nlines", b"a\0"])
def test_a_file_that_holds_no_token(
    content: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="no token"):
        environment(path)
    said = refused(capfd, "join", "127.0.0.1:1", "--token-file", str(path))
    assert "is no token" in said


def test_start_and_join_are_refused_in_a_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coexec.pipeline.cluster.nodes.prepare", environment)  # for this process
    assert "there is no token" in refused(capfd, "join", "127.0.0.1:1")
    assert "Is a directory" in refused(capfd, "join", "127.0.0.1:1", "--token-file", str(tmp_path))
    make_token()
    assert "no head answers at 127.0.0.1:1" in refused(capfd, "join", "127.0.0.1:1")
    assert "no address of a head" in refused(capfd, "join", "nowhere")
    for host in ("192.0.2.77", "0.0.0.0", "localhost", "a..b", "\x00"):
        assert f"has no address {host!r}" in refused(capfd, "start", "--host", host)
    assert "--port" in refused(capfd, "start", "--port", "70000")
    with pytest.raises(UsageError, match="70000 is no port; give one from 1 to 65535"):
        start("a", port=70000)
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"port {port} is in use" in refused(capfd, "start", "--port", port)


def test_a_clusters_verbs_need_its_packages(
    model: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    for words in (["start"], ["join", "h:1"], ["status"], ["run", model, "--nodes", "2"]):
        assert "uvicorn ray" in refused(capfd, *words)
    assert main(["cluster", "plan", model, *MADE_UP]) == 0  # planning needs none


def test_another_coexec_and_a_name_that_is_taken_are_refused() -> None:
    def node(name: str, build: str, head: bool = False) -> RayNode:
        return RayNode("id", name, build, "10.0.0.1", "host", True, head)

    here = [node("h", build(), head=True), node("a", build())]
    check_welcome(here, "h:1", "b")
    with pytest.raises(DeviceError, match=r"head at h:1 has coexec 0\.0-x, this machine"):
        check_welcome([node("h", "0.0-x", head=True)], "h:1", "a")
    with pytest.raises(DeviceError, match="has coexec none"):
        check_welcome([node("a", build())], "h:1", "a")
    with pytest.raises(DeviceError, match="has a machine 'a' already"):
        check_welcome(here, "h:1", "a")
    check_welcome(here, "h:1", "a", has_joined=True)
    with pytest.raises(DeviceError, match="has a machine 'a' already"):
        check_welcome([*here, node("a", build())], "h:1", "a", has_joined=True)


def test_a_node_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coexec.pipeline.cluster.nodes._RAY", (sys.executable, "-m", "no.ray"))
    nodes = LocalNodes()
    with pytest.raises(DeviceError, match=r"Ray did not start.*No module named 'no'"):
        nodes.add("a")
    nodes.stop()
    assert not nodes.folder.exists()


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Sets the shell script that runs in place of Ray, in this process without its variables.
    Afterwards nothing runs that it has started."""
    monkeypatch.setattr("coexec.pipeline.cluster.nodes.prepare", environment)
    make_token()

    def set_script(script: str) -> None:
        command = ("sh", "-c", script, "ray")
        monkeypatch.setattr("coexec.pipeline.cluster.nodes._RAY", command)

    yield set_script
    until(lambda: not processes_of(str(tmp_path)))  # a killed process may take a moment to end


def test_a_head_without_an_address_is_refused(stand_in: Callable[[str], None]) -> None:
    stand_in("sleep 1000 & echo To terminate the Ray runtime")
    with pytest.raises(DeviceError, match="did not say at which address its head listens"):
        start("a")


def test_a_start_that_takes_too_long_leaves_nothing(
    stand_in: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coexec.pipeline.cluster.nodes._START_S", 0.5)
    stand_in("sleep 1000 & sleep 1000")
    with pytest.raises(DeviceError, match="Ray did not start"):
        start("a")


@pytest.mark.alone
def test_an_interrupted_start_leaves_nothing(stand_in: Callable[[str], None]) -> None:
    stand_in("sleep 1000 & kill -INT $PPID; sleep 1000")
    # A shell ignores Ctrl-C for what it starts in the background, such as this test.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            start("a")
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_machine_whose_name_another_has_taken_meanwhile_leaves(
    stand_in: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in("sleep 1000 & echo To terminate the Ray runtime")
    head = RayNode("id", "h", build(), "10.0.0.1", "host", True, True)
    twin = head._replace(name="a", is_head=False)
    coming = iter([[head], [head, twin, twin]])
    monkeypatch.setattr("coexec.pipeline.cluster.nodes.nodes_of", lambda address: next(coming))
    with pytest.raises(DeviceError, match="has a machine 'a' already"):
        start("a", "h:1")


def test_the_variables_of_a_driver_are_not_those_of_nodes(
    stand_in: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")
    stand_in(
        "echo \"ray start --address='${RAY_DISABLE_FAILURE_SIGNAL_HANDLER-unset}'\";"
        "echo To terminate the Ray runtime"
    )
    assert start("a") == "unset"


# Frames and figures


def test_frames_come_from_a_file_one_for_all_or_stacked(tmp_path: Path) -> None:
    graph = load(branches(), name="branches").graph
    [name] = graph.inputs
    shape = graph.tensors[name].shape
    path = tmp_path / "frames.npz"
    np.savez(path, **{name: np.ones(shape, np.float32)})
    assert given_frames(graph, path, None, 50).count == 50
    stack = np.stack([np.full(shape, i, np.float32) for i in range(3)])
    np.savez(path, **{name: stack})
    frames = given_frames(graph, path, None, 50)
    assert frames.count == 3
    assert [feeds[name].flat[0] for _, feeds in frames] == [0, 1, 2]
    assert [kind for kind, _ in given_frames(graph, path, 5, 50)] == [0, 1, 2, 0, 1]
    np.savez(path, **{name: stack[:0]})
    with pytest.raises(InputError):
        given_frames(graph, path, None, 50)
    np.savez(path, other=stack)
    with pytest.raises(InputError, match="missing"):
        given_frames(graph, path, None, 50)


def test_a_period_is_the_slope_of_the_middle_and_latencies_have_quantiles() -> None:
    found = Answered(0.0)
    found.at_s = [5.0, *(5.0 + 0.1 * i for i in range(1, 20)), 9.0]  # slow to begin and end
    found.latencies_s = [0.1] * 19 + [0.5, 0.9]
    assert found.period_s == pytest.approx(0.1)
    assert found.latency_s == 0.1 and 0.1 < found.late_s <= 0.9
    found.at_s, found.latencies_s = [2.0], [2.0]
    assert found.period_s == found.latency_s == found.late_s == 2.0


def test_stages_as_ranges() -> None:
    assert format_numbers((0, 1, 2, 5), ", ") == "0-2, 5"
    assert format_numbers((), ", ") == ""


def test_help_and_other_verbs_do_not_import_ray() -> None:
    script = (
        "import sys; from coexec.cli import main; "
        "main(['cluster', 'run', '--help']); sys.exit('ray' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0 and "--nodes" in done.stdout


@pytest.mark.alone
def test_signals_end_what_is_within_once() -> None:
    before = signal.getsignal(signal.SIGTERM)
    ended = []
    with pytest.raises(KeyboardInterrupt), ended_by_signals():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            pytest.fail("the signal was not noticed")
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.kill(os.getpid(), number)  # ignored: this is what ends nodes
            ended.append(True)
    assert ended and signal.getsignal(signal.SIGTERM) is before
