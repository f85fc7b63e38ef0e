"""The verbs from outside: what they print, for people and for programs, and what they write."""

import json
from dataclasses import replace
from functools import partial
from inspect import signature
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from coexec.cli import bench, checks, explain, plan, run, simulate
from coexec.cli.decisions import candidate_lines
from coexec.cli.exits import CHECK_FAILED
from coexec.cli.options import SettingOptions
from coexec.engines.detect import usable_cores
from coexec.engines.names import without_engine
from coexec.errors import CheckError, CoexecError
from coexec.report import energy, race
from coexec.report.energy import EnergyCounter, measured_energy
from coexec.rules import default_rules
from coexec.selection import optimize
from coexec.selection.decision import Candidate, Decision
from tests.cli.conftest import CPU, TWO, CommandLine
from tests.helpers.core_programs import cpp_name
from tests.helpers.gpu_networks import small_network
from tests.helpers.quick_choice import QUICK_RULES
from tests.helpers.small_models import from_nodes, tensor_info

pytestmark = pytest.mark.usefixtures("quick_choice")

ON_CPU = ("MODEL", "--devices", CPU, "--planner", "single")
PHONE = ("zoo:squeezenet", "--platform", "kirin_990")
WATTS = ("MODEL", "--platform", "snapdragon_855", "--planner")


@pytest.mark.usefixtures("no_memory")
def test_every_verb(cli: CommandLine) -> None:
    on, files = ("--devices", TWO), [str(cli.folder / n) for n in ("p.json", "t.json", "o.npz")]
    plan, trace, result = files
    assert "width" in cli("inspect", "MODEL")
    assert " measured of " in cli("profile", "MODEL", *on)
    known = cli("profile", "MODEL", *on)
    assert " known of " in known and "measured" not in known
    assert "simulated" in cli("plan", "MODEL", *on, "--output", plan)
    cli("simulate", "MODEL", "--plan", plan, "--trace", trace)
    assert json.loads(Path(trace).read_text())["traceEvents"]
    checked = cli("run", "MODEL", "--plan", plan, "--check", "--output", result)
    assert "equal to ONNX Runtime" in checked
    assert np.load(result)["y"].shape == (1, 48)
    (cli.folder / "any").touch()  # any program's file: the mode is the umask's
    assert len({Path(path).stat().st_mode & 0o777 for path in (*files, cli.folder / "any")}) == 1
    printed = cli("bench", "MODEL", *on, "--repeats", "2", "--check", "--gantt")
    for words in ("alone", "at up to 30 requests a second (paced)", "in a loop (loop)", "│"):
        assert words in printed


def test_all_verbs_have_the_same_default_planner() -> None:
    verbs = (bench, explain, plan, run, simulate)
    assert {signature(v.command).parameters["planner"].default for v in verbs} == {"auto"}


def test_candidates_are_printed_with_the_figure_that_decided(shared: CommandLine) -> None:
    with default_rules(replace(QUICK_RULES, worth_trying=float("inf"))):
        printed = shared("plan", "MODEL", "--devices", TWO, "--option", "requests=loop")
    lines = [line.split(maxsplit=1) for line in printed.splitlines()]
    rows = dict(line for line in lines if len(line) == 2)
    assert " paced" in rows["taken"] and " in a loop" in rows["taken"]
    assert "one request after the other, by which plans are ranked" in rows["figures"]
    assert "at up to 30 requests a second, by which" not in rows["figures"]
    assert rows["verdict"].endswith(" is clearly faster") or " is taken: " in rows["verdict"]


def test_a_plan_that_is_only_the_first_is_not_called_taken() -> None:
    rows = (
        Candidate(("cpu:0",), "heft", status="taken", reason="the taken plan is clearly faster"),
        Candidate(("cpu:1",), "heft", reason="the taken plan is still faster"),
    )
    text = "\n".join(candidate_lines(Decision(rows), "first"))
    assert text.count("the first plan is") == 2 and "taken plan" not in text


def test_a_check_that_fails_is_told_from_what_cannot_be_done(
    shared: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(work: Any, feeds: Any, outputs: Any) -> checks.OutputCheck:
        error = CheckError("the outputs differ from ONNX Runtime's")
        return checks.OutputCheck(dict.fromkeys(outputs, 0.5), error=error)

    monkeypatch.setattr(checks, "check_outputs", wrong)
    found = shared.json("run", *ON_CPU, "--check", code=CHECK_FAILED)
    assert found["error"]["kind"] == "CheckError" and found["latency_s"] > 0
    assert set(found["differences"].values()) == {0.5}
    line = shared.refused("run", *ON_CPU, "--check", code=CHECK_FAILED)
    assert "differ from ONNX Runtime" in line
    shared("run", *ON_CPU)
    assert issubclass(CheckError, CoexecError)


def test_inspect_memory(shared: CommandLine) -> None:
    table = shared("inspect", "MODEL", "--memory")
    assert all(w in table for w in ("by_size_improved", "offsets_by_size", "bound", "KiB"))
    memory = shared.json("inspect", "MODEL", "--memory")["memory"]
    for row in memory["strategies"]:
        bound = memory["bound_bytes"][row["family"]]
        assert row["of_bound"] == row["total_bytes"] / bound >= 1
    assert {row["family"] for row in memory["strategies"]} == {"objects", "offsets"}


@pytest.mark.filterwarnings("always::coexec.errors.AssumedWarning")
def test_shapes_and_values_of_inputs(cli: CommandLine) -> None:
    ends = tensor_info("x", ["n", 4]), tensor_info("y", ["n", 4])
    relu = from_nodes([helper.make_node("Relu", ["x"], ["y"])], [ends[0]], [ends[1]])
    dynamic = cli.save(relu, "dynamic.onnx")
    assert "--shape x=1,4" in " ".join(cli.both("inspect", dynamic)[1].split())
    for shape in ("n=2", "x=2,4", "x=2x4"):
        assert cli.json("inspect", dynamic, "--shape", shape)["activation_bytes"] == 2 * 4 * 4
    pad = from_nodes(
        [helper.make_node("Pad", ["x", "p"], ["y"])],
        [tensor_info("x", [1, 4]), tensor_info("p", [4], onnx.TensorProto.INT64)],
        [tensor_info("y", [1, "n"])],
    )
    result = str(cli.folder / "padded.npz")
    fixed = ("--value", "p=0,0,0,3", "--check", "--output", result)
    cli("run", cli.save(pad, "pad.onnx"), *ON_CPU[1:], *fixed)
    assert np.load(result)["y"].shape == (1, 7)


@pytest.mark.parametrize(
    ("setting", "text", "value"),
    [
        ("values", "k=007", 7),
        ("values", "k=1,0.5", [1, 0.5]),
        ("values", "k=True", True),
        ("values", "a=b=1", 1),
        ("values", "text=None", "None"),
        ("values", "text='a'", "'a'"),
        ("planner_options", "k=1e-3", 0.001),
        ("planner_options", "k=true", True),
        ("planner_options", "k=None", None),
        ("planner_options", "k=a,b", "a,b"),
        ("planner_options", "k=a=b", "a=b"),
    ],
)
def test_a_text_is_the_value_that_it_shows(setting: str, text: str, value: object) -> None:
    ((name, found),) = getattr(SettingOptions({setting: [text]}).settings(), setting).items()
    assert (found, type(found)) == (value, type(value))
    assert name == ("a=b" if text == "a=b=1" else text.partition("=")[0])


def test_a_crash_is_in_the_document_of_optimize(
    shared: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = optimize.Verdict(unfinished="race of 4 plans", crash="its process has crashed")
    monkeypatch.setattr(optimize, "optimize", lambda *_: verdict)
    found = shared.json("optimize", "MODEL")
    assert (found["unfinished"], found["crash"]) == ("race of 4 plans", "its process has crashed")


# --- Profiles


@pytest.mark.long
def test_training_and_what_is_said_without(cli: CommandLine) -> None:
    on = ("--devices", "null:0")
    remedy = "coexec profile --train --devices null:0/null trains one"
    assert remedy in " ".join(cli("profile", "MODEL", *on).split())
    learnt = cli.json("profile", "--train", "--samples", "40", *on)
    assert "Conv" in learnt["predictors"]["null:0/null"]
    assert remedy not in " ".join(cli("profile", "MODEL", *on).split())


def test_parts_of_tasks_are_measured_once_and_counted(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine; on a quiet one, what others have disturbed is measured again."""
    monkeypatch.setattr("coexec.profiling.profiler.Profiler._is_busy", True)
    words = ("profile", "MODEL", "--devices", "null:0")
    assert "parts of tasks measured" not in cli(*words)
    assert "parts of tasks measured" in cli(*words, "--pieces")
    known = cli.json(*words)["pieces_s"]["null:0/null"]
    assert known and all(seconds > 0.0 for seconds in known.values())
    assert cli.json(*words, "--pieces")["pieces_s"]["null:0/null"] == known


@pytest.mark.long
def test_changes_of_layout_are_told(cli: CommandLine) -> None:
    """ONNX Runtime and cpp have 18 channels in blocks that are not filled, however wide."""
    if len(usable_cores()) < 2:
        pytest.skip("needs two cores")
    nodes = [helper.make_node("Conv", [x, w], [y]) for x, w, y in ("xwa", "avb")]
    weights = {"w": np.ones((18, 16, 1, 1), np.float32), "v": np.ones((16, 18, 1, 1), np.float32)}
    ends = [tensor_info(name, [1, 16, 8, 8]) for name in "xb"]
    model = cli.save(from_nodes(nodes, ends[:1], ends[1:], weights), "layouts.onnx")
    words = ("profile", model, "--devices", f"{CPU},{cpp_name()}")
    changes = cli.json(*words)["layout_changes"]
    ways = {(c["source"], c["target"]) for c in changes}
    assert {(f"{CPU}/onnxruntime", cpp_name()), (cpp_name(), cpp_name())} <= ways
    assert all(c["tensors"] == ["a"] and c["byte_s"] >= 0.0 for c in changes)
    assert "tensors that change their layout: 1" in " ".join(cli(*words).split())


# --- Phones


def test_what_a_phone_prints_is_simulated(cli: CommandLine) -> None:
    plan = str(cli.folder / "plan.json")
    printed = cli("plan", *PHONE, "--planner", "heft", "--output", plan)
    assert "kirin_990, simulated" in printed
    assert "simulated:" in cli("simulate", *PHONE, "--plan", plan)
    assert "cpu:0-3" in cli("plan", *PHONE, "--devices", "cpu:6-7,cpu:0-3")


def test_the_programs_of_a_plan_are_printed(shared: CommandLine) -> None:
    words = ("plan", *PHONE, "--planner", "mulayer", "--programs")
    found = shared.json(*words)
    rows = [row for program in found["programs"].values() for row in program]
    kinds = {"wait", "copy", "run", "signal"}
    assert len(found["programs"]) > 1 and {row["step"] for row in rows} == kinds
    runs = sorted(row["segment"] for row in rows if row["step"] == "run")
    assert runs == [*range(found["segments"])]
    lines = shared(*words).splitlines()
    for device, program in found["programs"].items():
        first = lines.index(device) + 1
        printed = [line.split()[0] for line in lines[first : first + len(program)]]
        assert printed == [row["step"] for row in program]


def test_auto_on_a_simulated_phone_keeps_the_plan_that_simulates_best(shared: CommandLine) -> None:
    best_s = shared.json("simulate", *PHONE)["simulated_s"]
    quick = ("hope_greedy", "heft", "single")
    tried = [shared.json("simulate", *PHONE, "--planner", p)["simulated_s"] for p in quick]
    assert best_s == min(tried)


@pytest.mark.long
def test_simulate_and_plan_choose_alike_on_this_machine(cli: CommandLine) -> None:
    words = ("zoo:lstm", "--devices", CPU)
    assert cli.json("plan", *words)["predicted_s"] == cli.json("simulate", *words)["simulated_s"]


# --- Energy


@pytest.mark.parametrize("verb", ["simulate", "plan", "explain"])
def test_a_phone_has_energy_if_its_watts_are_known(verb: str, shared: CommandLine) -> None:
    found = shared.json(verb, *WATTS, "heft")
    assert set(found["device_energy_j"]) == {"cpu:4-7", "gpu:0"}
    assert found["energy_j"] == pytest.approx(sum(found["device_energy_j"].values())) != 0
    text = shared(verb, *WATTS, "heft")
    assert "energy" in text and " J" in text.replace("mJ", " J").replace("uJ", " J")
    unknown = ("MODEL", "--platform", "kirin_990", "--planner", "heft")
    found = shared.json(verb, *unknown)
    assert found["energy_j"] is None and found["device_energy_j"] is None
    assert "energy" not in shared(verb, *unknown)


def test_joules_are_those_of_one_request(shared: CommandLine) -> None:
    """One after the other on the CPU, three requests take three times the energy of one."""
    words = ("simulate", *WATTS, "single", "--devices", "cpu:4-7", "--requests")
    one, three = (shared.json(*words, number) for number in "13")
    assert three["simulated_s"] == pytest.approx(3 * one["simulated_s"])
    assert three["energy_j"] == pytest.approx(one["energy_j"])


def test_an_engine_of_a_phone(cli: CommandLine) -> None:
    on = (*WATTS, "single", "--devices")
    image, buffer = (cli.json("simulate", *on, f"gpu:0/{n}") for n in ("image", "buffer"))
    assert image["simulated_s"] < buffer["simulated_s"]
    plan = str(cli.folder / "plan.json")
    cli("plan", *on, "gpu:0/buffer", "--output", plan)
    again = cli.json("simulate", *WATTS[:3], "--plan", plan)
    assert again["simulated_s"] == buffer["simulated_s"]


@pytest.mark.long
@pytest.mark.parametrize("is_counted", [True, False])
def test_energy_of_this_machine(
    is_counted: bool, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a counter that has grown by a joule whenever it is read, and without one."""
    if is_counted:
        package = cli.folder / "intel-rapl:0"
        package.mkdir(parents=True)
        (package / "name").write_text("package-0")
        (package / "max_energy_range_uj").write_text("1000000000")
        numbers = count()
        monkeypatch.setattr(EnergyCounter, "read_uj", lambda self: 1_000_000 * next(numbers))
    for module in (energy, race):
        measure = partial(measured_energy, root=cli.folder)
        monkeypatch.setattr(module, "measured_energy", measure)
    rows = [cli.json("run", *ON_CPU), *cli.json("bench", *ON_CPU, "--repeats", "1")["rows"]]
    for row in rows:
        if is_counted:
            assert 0 < row["energy_j"] < 1 and row["energy_unknown"] is None
        else:
            assert row["energy_j"] is None and "no energy counters" in row["energy_unknown"]
    assert ("energy: " in cli("run", *ON_CPU)) == is_counted
    assert ("energy" in cli("bench", *ON_CPU, "--repeats", "1")) == is_counted


# --- Engines


@pytest.fixture
def concat(cli: CommandLine) -> str:
    return cli.save(small_network("concat", as_model=True), "concat.onnx")


def test_verbs_on_a_gpu(gpu: str, concat: str, cli: CommandLine) -> None:
    on, plan, name = ("--devices", gpu), cli.folder / "plan.json", without_engine(gpu)
    assert f"{gpu} runs 3 of 3 tasks" in cli("inspect", concat, "--device", gpu)
    assert gpu in cli("profile", concat, *on)
    cli("plan", concat, *on, "--planner", "single", "--output", str(plan))
    rows = json.loads(plan.read_text())["order"]
    assert list(rows) == [name] and {row["engine"] for row in rows[name]} == {"opencl"}
    # A plan says what it needs: no device is named, and the engine is that of the plan.
    own = (concat, "--plan", str(plan))
    assert "equal to ONNX Runtime" in cli("run", *own, "--check")
    tasks = cli.json("explain", *own)["tasks"]
    assert {(t["device"], t["engine"]) for t in tasks} == {(name, "opencl")}
    line = cli.refused("run", *own, "--devices", CPU, code=3)
    assert f"the plan uses device '{name}', the system has" in line


@pytest.mark.usefixtures("no_memory")
def test_an_option_reaches_the_engine(gpu: str, concat: str, cli: CommandLine) -> None:
    words = ("--devices", gpu, "--planner", "single", "--repeats", "2", "--check")
    printed = cli("bench", concat, *words, "--engine", "opencl.precision=fp16")
    assert "within 1e-02 of the largest value" in printed


@pytest.mark.usefixtures("no_memory")
def test_bench_leaves_out_a_device_that_lacks_an_operator(tmp_path: Path, cli: CommandLine) -> None:
    """Such a device shares its cores with ONNX Runtime, as the error about it advises."""
    nodes = [
        helper.make_node("CumSum", ["x", "axis"], ["c"]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    infos = ([tensor_info(name, [2, 8])] for name in "xy")
    model = tmp_path / "cumsum.onnx"
    onnx.save(from_nodes(nodes, *infos, {"axis": np.array(1, np.int64)}), model)
    name, cores = cpp_name(), cpp_name().partition("/")[0]
    words = ("--devices", f"{name},{cores}", "--planner", "heft", "--repeats", "1")
    found = cli.json("bench", str(model), *words)
    assert f"{cores} alone" in {row["name"] for row in found["rows"]}
    assert "does not run 1 of the 2 tasks" in found["left_out"][name]


# --- Odd models


@pytest.mark.usefixtures("no_memory")
def test_a_model_that_returns_its_input(cli: CommandLine) -> None:
    x, on = tensor_info("x", [3]), ("--devices", TWO)
    path = cli.save(from_nodes([], [x], [x]), "x.onnx")
    plan, result = (str(cli.folder / n) for n in ("plan.json", "out.npz"))
    cli("plan", path, *on, "--output", plan)
    cli("run", path, "--plan", plan, "--check", "--output", result)
    assert np.load(result)["x"].shape == (3,)
    cli("inspect", path)
    for verb in ("explain", "simulate", "profile"):
        cli(verb, path, *on)
    printed = "".join(cli.both("bench", path, *on, "--repeats", "2"))
    assert "alone" in printed and "not a plan" not in printed


def test_a_sequence_is_written_array_by_array(cli: CommandLine) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("SequenceConstruct", ["x", "y"], ["s"]),
    ]
    out = helper.make_tensor_sequence_value_info("s", onnx.TensorProto.FLOAT, None)
    path = cli.save(from_nodes(nodes, [tensor_info("x", [3])], [out]), "s.onnx")
    feeds, result = (str(cli.folder / n) for n in ("in.npz", "out.npz"))
    x = np.array([-1.0, 0.0, 2.0], np.float32)
    np.savez(feeds, x=x)
    cli("run", path, "--inputs", feeds, "--output", result)
    found = np.load(result)
    assert np.array_equal(found["s[0]"], x) and np.array_equal(found["s[1]"], np.maximum(x, 0))


@pytest.mark.usefixtures("no_memory")
@pytest.mark.parametrize("fed", [True, False])
@pytest.mark.parametrize("kind", ["BFLOAT16", "FLOAT8E4M3FN", "INT4"])
def test_types_that_numpy_does_not_have(cli: CommandLine, kind: str, fed: bool) -> None:
    """A model that takes, or returns, numbers of such a type."""
    number = onnx.TensorProto.DataType.Value(kind)
    odd, (x, y, z) = tensor_info("odd", [5], number), (tensor_info(n, [5]) for n in "xyz")
    plain = helper.make_node("Cast", ["odd"], ["y"], to=1)
    if fed:
        nodes, ends = [plain, helper.make_node("Neg", ["y"], ["z"])], ([odd], [y, z])
    else:
        nodes, ends = [helper.make_node("Cast", ["x"], ["odd"], to=number), plain], ([x], [y, odd])
    path = cli.save(from_nodes(nodes, *ends, opset=23), "m.onnx")
    planned = (path, "--devices", TWO, "--planner", "heft")
    for words in (("run", "--check"), ("check",), ("check", "--tasks")):
        cli(words[0], *planned, *words[1:])
    cli("bench", *planned, "--repeats", "2", "--check")


@pytest.mark.usefixtures("no_memory")
@pytest.mark.filterwarnings("ignore::coexec.errors.AssumedWarning")
def test_a_graph_network_whose_sizes_are_open(cli: CommandLine) -> None:
    """The indices of the nodes at both ends of an edge fit the sizes that coexec assumes."""
    number = onnx.TensorProto.INT64
    node = helper.make_node
    proto = from_nodes(
        [
            node("Gather", ["table", "kinds"], ["embedded"]),
            node("Add", ["x", "embedded"], ["h"]),
            node("Slice", ["edges", "zero", "one", "zero"], ["begins"]),
            node("Squeeze", ["begins", "zero"], ["begin"]),
            node("Gather", ["edges", "second"], ["end"], axis=0),
            node("Gather", ["h", "begin"], ["begun"], axis=0),
            node("MatMul", ["begun", "weights"], ["messages"]),
            node("Shape", ["messages"], ["shape"]),
            node("Unsqueeze", ["end", "one"], ["column"]),
            node("Expand", ["column", "shape"], ["at"]),
            node("ScatterElements", ["h", "at", "messages"], ["summed"], axis=0, reduction="add"),
            node("Gather", ["graphs", "batch"], ["of_graph"]),
            node("Add", ["summed", "of_graph"], ["y"]),
        ],
        [
            tensor_info("x", ["nodes", 4]),
            tensor_info("kinds", ["nodes"], number),
            tensor_info("batch", ["nodes"], number),
            tensor_info("edges", [2, "edge_count"], number),
            tensor_info("graphs", ["graph_count", 4]),
        ],
        [tensor_info("y", ["nodes", 4])],
        {
            "table": np.arange(40, dtype=np.float32).reshape(10, 4) / 40,
            "weights": np.eye(4, dtype=np.float32),
            "zero": np.array([0], np.int64),
            "one": np.array([1], np.int64),
            "second": np.array(1, np.int64),
        },
        opset=18,
    )
    path = cli.save(proto, "graph.onnx")
    for words in (
        "run --check",
        "run --check --planner heft",
        "bench --repeats 2",
        "check",
        "check --tasks",
        "profile",
        "explain",
        "report --output FOLDER/report.html",
    ):
        verb, *options = words.split()
        cli(verb, path, "--devices", TWO, *options)
