"""The command line from outside: every verb, and what bad input gets."""

import json
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from coexec.cli import main
from coexec.cli.exits import WRONG_USAGE
from coexec.engines.detect import usable_cores
from coexec.rules import default_rules
from coexec.selection.chooser import Chooser
from tests.helpers.quick_choice import QUICK_RULES
from tests.helpers.small_models import branches, from_nodes, tensor_info

pytestmark = pytest.mark.usefixtures("quick_choice")

CORES = usable_cores()
TWO = ",".join(f"cpu:{c}" for c in CORES[:2])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    onnx.save(branches(), str(folder / "model.onnx"))
    return folder


def new_file_mode(folder: Path) -> int:
    """The mode of a file that any program makes: the umask's."""
    (folder / "any").touch()
    return (folder / "any").stat().st_mode & 0o777


def call(folder: Path, *words: str) -> int:
    return main([*words, "--cache", str(folder / "cache")])


def test_every_verb(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, plan, trace = (str(folder / n) for n in ("model.onnx", "plan.json", "trace.json"))
    assert main(["devices"]) == 0
    assert call(folder, "inspect", model) == 0
    assert "width" in capfd.readouterr().out
    assert call(folder, "profile", model, "--devices", TWO) == 0
    assert " measured of " in capfd.readouterr().out
    assert call(folder, "profile", model, "--devices", TWO) == 0
    assert " known of " in (said := capfd.readouterr().out) and "measured" not in said
    assert call(folder, "plan", model, "--devices", TWO, "--output", plan) == 0
    assert "simulated" in capfd.readouterr().out
    assert call(folder, "simulate", model, "--plan", plan, "--trace", trace) == 0
    assert json.loads(Path(trace).read_text())["traceEvents"]
    result = str(folder / "out.npz")
    assert call(folder, "run", model, "--plan", plan, "--check", "--output", result) == 0
    assert "equal to ONNX Runtime" in capfd.readouterr().out
    assert np.load(result)["y"].shape == (1, 48)
    modes = {Path(path).stat().st_mode & 0o777 for path in (plan, trace, result)}
    assert modes == {new_file_mode(folder)}
    assert call(folder, "bench", model, "--devices", TWO, "--repeats", "2", "--check") == 0
    printed = capfd.readouterr().out
    assert "alone" in printed
    assert "at up to 30 requests a second (paced)" in printed and "in a loop (loop)" in printed


@pytest.mark.usefixtures("no_memory")
def test_ratios_of_bench_are_those_of_the_medians_that_it_prints(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--devices", TWO, "--planner", "heft", "--repeats", "2", "--json"]
    assert call(folder, "bench", str(folder / "model.onnx"), *words) == 0
    found = json.loads(capfd.readouterr().out)
    rows = {row["name"]: row for row in found["rows"]}
    assert {"heft", *(f"{name} alone" for name in TWO.split(","))} < set(rows)
    assert any(name.startswith("ONNX Runtime") for name in rows) and found["disturbed_turns"] >= 0
    base = rows[found["base"]]
    assert base["name"].startswith("ONNX Runtime")
    for row in rows.values():
        for figure in ("paced", "loop"):
            assert 0 < row[f"{figure}_s"] <= row[f"{figure}_p90_s"] <= row[f"{figure}_p99_s"]
            assert row[f"{figure}_ratio"] == row[f"{figure}_s"] / base[f"{figure}_s"]
        assert row["requests_per_s"] > 0


def test_candidates_are_printed_with_the_figure_that_decided(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [str(folder / "model.onnx"), "--devices", TWO, "--option"]
    with default_rules(replace(QUICK_RULES, worth_trying=float("inf"))):
        assert call(folder, "plan", *words, "requests=loop") == 0
    lines = [line.split(maxsplit=1) for line in capfd.readouterr().out.splitlines()]
    rows = dict(line for line in lines if len(line) == 2)
    assert " paced" in rows["taken"] and " in a loop" in rows["taken"]
    assert "one request after the other, by which plans are ranked" in rows["figures"]
    assert "at up to 30 requests a second, by which" not in rows["figures"]
    assert rows["verdict"].endswith(" is clearly faster") or " is taken: " in rows["verdict"]
    refuse(capfd, call(folder, "plan", *words, "requests=now"), "'now'", "paced, loop")


@pytest.mark.parametrize("verb", ["devices", "inspect", "profile", "plan", "simulate", "run"])
def test_json_of_every_verb(verb: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if verb == "devices":
        assert main([verb, "--json"]) == 0
    else:
        devices = [] if verb == "inspect" else ["--devices", TWO]
        assert call(folder, verb, str(folder / "model.onnx"), "--json", *devices) == 0
    assert isinstance(json.loads(capfd.readouterr().out), dict)


def test_a_warning_is_one_line(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    turned = helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])
    wrong = from_nodes([turned], [tensor_info("x", [2, 3])], [tensor_info("y", [2, 3])])
    onnx.save(wrong, str(folder / "wrong.onnx"))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert call(folder, "inspect", str(folder / "wrong.onnx")) == 0
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("coexec: warning: the model 'wrong' declares 1 wrong shapes: 'y' as")


def fail(capfd: pytest.CaptureFixture[str], code: int, *parts: str) -> None:
    """It cannot be done here."""
    refuse(capfd, code, *parts, expected=3)


def refuse(capfd: pytest.CaptureFixture[str], code: int, *parts: str, expected: int = 2) -> None:
    """Wrong usage, unless another exit code is expected."""
    captured = capfd.readouterr()
    message = captured.err.strip()
    assert code == expected
    assert len(message.splitlines()) == 1 and message.startswith("coexec: ")
    assert "Traceback" not in message
    for part in parts:
        assert part in message


def test_files_that_are_no_model(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    whole = (folder / "model.onnx").read_bytes()
    for name, content in {
        "empty.onnx": b"",
        "random.onnx": np.random.default_rng(0).bytes(4000),
        "truncated.onnx": whole[: len(whole) // 2],
        "text.onnx": b"this is not a model\n" * 10,
    }.items():
        (folder / name).write_bytes(content)
        fail(capfd, call(folder, "inspect", str(folder / name)), name, "bytes")
    fail(capfd, call(folder, "inspect", str(folder / "none.onnx")), "does not exist")
    fail(capfd, call(folder, "inspect", str(folder)), "cannot read the model")
    fail(capfd, call(folder, "inspect", "zoo:alexnet"), "squeezenet")


@pytest.mark.filterwarnings("always::coexec.errors.AssumedWarning")
def test_models_that_cannot_be_planned(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    one, out = [tensor_info("x", [1, 4])], [tensor_info("y", [1, 4])]
    cases = {
        "operator": (from_nodes([onnx.helper.make_node("Frob", ["x"], ["y"])], one, out), "Frob"),
        "domain": (
            from_nodes([onnx.helper.make_node("Relu", ["x"], ["y"], domain="my.ops")], one, out),
            "my.ops",
        ),
    }
    for name, (proto, part) in cases.items():
        onnx.save(proto, str(folder / f"{name}.onnx"))
        fail(capfd, call(folder, "inspect", str(folder / f"{name}.onnx")), part)
    dynamic = str(folder / "dynamic.onnx")
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    open_ends = tensor_info("x", ["n", 4]), tensor_info("y", ["n", 4])
    onnx.save(from_nodes([node], [open_ends[0]], [open_ends[1]]), dynamic)
    assert call(folder, "inspect", dynamic) == 0
    assert "--shape x=1,4" in " ".join(capfd.readouterr().err.split())
    assert call(folder, "inspect", dynamic, "--shape", "x=2,4") == 0
    capfd.readouterr()
    refuse(capfd, call(folder, "inspect", dynamic, "--shape", "z=2,4"), "'z'", "'x'")
    refuse(capfd, call(folder, "inspect", dynamic, "--shape", "x=2,5"), "contradicts")
    refuse(capfd, call(folder, "inspect", dynamic, "--shape", "nonsense"), "INPUT=1,3,224,224")
    for shape in ("n=2", "x=2,4"):
        assert call(folder, "inspect", dynamic, "--shape", shape, "--json") == 0
        assert json.loads(capfd.readouterr().out)["activation_bytes"] == 2 * 4 * 4
    refuse(capfd, call(folder, "inspect", dynamic, "--shape", "n=2,4"), "has one size")
    fail(capfd, call(folder, "inspect", dynamic, "--shape", "n=1000000000000"), "machine has")


def test_values_of_inputs(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    proto = from_nodes(
        [helper.make_node("Pad", ["x", "p"], ["y"])],
        [tensor_info("x", [1, 4]), tensor_info("p", [4], onnx.TensorProto.INT64)],
        [tensor_info("y", [1, "n"])],
    )
    onnx.save(proto, str(folder / "pad.onnx"))
    model = [str(folder / "pad.onnx"), "--devices", TWO.split(",")[0], "--planner", "single"]
    result = str(folder / "padded.npz")
    fixed = ["--value", "p=0,0,0,3", "--check", "--output", result]
    assert call(folder, "run", *model, *fixed) == 0
    capfd.readouterr()
    assert np.load(result)["y"].shape == (1, 7)
    for value, part in [
        ("p", "INPUT=16000"),
        ("p=", "INPUT=16000"),
        ("q=1", "'p'"),
        ("p=0.5", "int64 has no such number"),
        ("p=1,2", "--value p=[1, 2] is no value of the input 'p'"),
        ("p=many", "it is no number"),
    ]:
        refuse(capfd, call(folder, "run", *model, "--value", value), part)


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "link"])
def test_external_data_stays_in_its_folder(
    location: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret").write_bytes(bytes(64))
    (inside / "link").symlink_to(tmp_path / "secret")
    proto = from_nodes(
        [onnx.helper.make_node("Add", ["x", "w"], ["y"])],
        [tensor_info("x", [1, 4])],
        [tensor_info("y", [1, 4])],
        {"w": np.ones((1, 4), np.float32)},
    )
    weight = proto.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)
    (inside / "m.onnx").write_bytes(proto.SerializeToString())
    fail(capfd, call(tmp_path, "inspect", str(inside / "m.onnx")), location, "outside")


def test_options_that_make_no_sense(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = str(folder / "model.onnx")
    for words, part in [
        (["--devices", "tpu:0"], "unknown device"),
        (["--devices", "cpu:4000"], "wants core 4000"),
        (["--devices", f"cpu:{CORES[0]},cpu:{CORES[0]}"], "named twice"),
        (["--devices", ","], "--devices"),
        (["--planner", "magic"], "hope_greedy"),
        (["--option", "top_k"], "NAME=VALUE"),
        (["--option", "depth=3"], "no option 'depth'"),
        (["--planner", "anneal", "--option", "steps=many"], "is 'many'; it wants int"),
        (["--planner", "anneal", "--option", "steps=0"], "steps is 0"),
    ]:
        words = words if "--devices" in words else [*words, "--devices", TWO]
        absent = part in ("unknown device", "wants core 4000", "named twice")
        refuse(capfd, call(folder, "plan", model, *words), part, expected=3 if absent else 2)
    plan = folder / "broken.json"
    for text, part in [
        ("{", "not a plan"),
        ('{"format": 99}', "99"),
        ("[]", "it has no 'format'"),
        ("{}", "it has no 'format'"),
    ]:
        plan.write_text(text)
        fail(capfd, call(folder, "run", model, "--plan", str(plan)), part)
    other = folder / "other.json"
    onnx.save(branches(width=2), str(folder / "other.onnx"))
    words = [str(folder / "other.onnx"), "--devices", TWO, "--planner", "heft"]
    assert call(folder, "plan", *words, "--output", str(other)) == 0
    capfd.readouterr()
    fail(capfd, call(folder, "run", model, "--plan", str(other)), "another model")
    facts = json.loads(other.read_text())
    facts["made_for"]["shapes"] = {"absent": [1, 3]}
    other.write_text(json.dumps(facts))
    fail(capfd, call(folder, "run", model, "--plan", str(other)), "made for another model, with")
    inputs = folder / "in.npz"
    np.savez(inputs, x=np.zeros((1, 3, 5, 5), np.float32))
    fail(capfd, call(folder, "run", model, "--inputs", str(inputs)), "[1, 3, 5, 5]")
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize("content", [b"not an archive", None], ids=["file", "shape"])
def test_inputs_that_do_not_fit_are_refused_before_planning(
    content: bytes | None,
    tmp_path: Path,
    folder: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Chooser, "make", lambda *_: pytest.fail("it plans"))
    inputs = tmp_path / "in.npz"
    if content is None:
        np.savez(inputs, x=np.zeros((1, 3, 5, 5), np.float32))
    else:
        inputs.write_bytes(content)
    words = ["run", str(folder / "model.onnx"), "--inputs", str(inputs)]
    fail(capfd, call(tmp_path, *words), "[1, 3, 5, 5]" if content is None else "in.npz")


@pytest.mark.filterwarnings("always::coexec.errors.CacheWarning")
def test_a_damaged_store_and_a_cache_that_is_no_folder(
    tmp_path: Path, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = str(folder / "model.onnx")
    store = tmp_path / "cache" / "profiles-4.sqlite"
    store.parent.mkdir()
    store.write_bytes(b"not a database" * 100)
    assert call(tmp_path, "plan", model, "--devices", TWO) == 0
    assert "warning: " in (said := capfd.readouterr().err) and "sqlite was damaged" in said
    (tmp_path / "file").write_text("")
    for name in (str(tmp_path / "file"), "/proc/coexec-cli"):
        assert main(["inspect", model, "--cache", name]) == 0
        said = capfd.readouterr().err
        assert "cannot be written" in said and "--cache" in said and said.count("\n") == 1


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "coexec", "inspect", "none.onnx"],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [
        x for x in done.stderr.splitlines() if x != "coexec: loading none.onnx"
    ]  # slow machine
    assert done.returncode == 3 and len(lines) == 1 and "none.onnx" in lines[0]


def test_debug_shows_the_traceback(folder: Path) -> None:
    words = [sys.executable, "-c", "import sys; from coexec.cli import main; sys.exit(main())"]
    done = subprocess.run(
        [*words, "inspect", "none.onnx", "--debug"], capture_output=True, text=True, check=False
    )
    assert "Traceback" in done.stderr and "does not exist" in done.stderr


def test_inspect_memory(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = str(folder / "model.onnx")
    assert call(folder, "inspect", model, "--memory") == 0
    table = capfd.readouterr().out
    for word in ("by_size_improved", "offsets_by_size", "bound", "KiB"):
        assert word in table
    assert call(folder, "inspect", model, "--memory", "--json") == 0
    memory = json.loads(capfd.readouterr().out)["memory"]
    for row in memory["strategies"]:
        bound = memory["bound_bytes"][row["family"]]
        assert row["of_bound"] == row["total_bytes"] / bound >= 1
    assert {row["family"] for row in memory["strategies"]} == {"objects", "offsets"}


@pytest.mark.parametrize("verb", ["plan", "optimize"])
def test_a_plan_is_not_written_over_a_model(
    verb: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model.bin"
    onnx.save(branches(), str(model))
    before = model.read_bytes()
    for output, message in (("other.onnx", "name it other.json"), (model.name, "the model itself")):
        words = [verb, str(model), "--output", str(tmp_path / output)]
        assert main(words) == WRONG_USAGE
        (line,) = capfd.readouterr().err.splitlines()
        assert message in line
    assert model.read_bytes() == before and [*tmp_path.iterdir()] == [model]
