"""What bad words get: one line, an exit code, and a document with the kind of the error."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from coexec.cli.exits import CANNOT, WRONG_USAGE
from coexec.cli.output import SCHEMA
from coexec.selection.chooser import Chooser
from tests.cli.conftest import CPU, TWO, CommandLine
from tests.helpers.small_models import branches, from_nodes, tensor_info

PHONE = "zoo:squeezenet --platform kirin_990"
PLANS = {"{": "not a plan", '{"format": 99}': "99", "[]": "no 'format'", "{}": "no 'format'"}
BAD_SIZES = ("", "-1", "much", "nan", "1e3", "8Gbit", "1GB/s", "9" * 400, "1 2", "0x10", "∞")

WRONG = {
    # devices, planners and engines
    "plan MODEL --devices cpu:x": "cpu:0-3",
    "plan MODEL --devices ,": "--devices",
    "plan MODEL --planer x": "--planner",
    "plan MODEL --planner magic": "hope_greedy",
    "plan MODEL --option top_k": "NAME=VALUE",
    f"plan MODEL --devices {TWO} --option depth=3": "no option 'depth'",
    f"plan MODEL --devices {TWO} --option requests=now": "'now'",
    f"plan MODEL --devices {TWO} --planner anneal --option steps=many": "is 'many'; it wants int",
    f"plan MODEL --devices {TWO} --planner anneal --option steps=0": "steps is 0",
    "plan MODEL --pin conv": "--pin 'conv' is not of the form NAME=VALUE",
    "plan MODEL --engine precision=fp16": "is not of the form ENGINE.OPTION=VALUE, for example",
    "plan MODEL --engine opencl.precision": "is not of the form ENGINE.OPTION=VALUE",
    "plan MODEL --engine opencl.=fp16": "is not of the form ENGINE.OPTION=VALUE",
    f"plan MODEL --devices {CPU} --engine opencl.speed=high": "opencl has no option 'speed'; it ",
    f"plan MODEL --devices {CPU} --engine opencl.precision=fp8": "'fp8': it is one of float32, ",
    f"plan MODEL --devices {CPU} --precision int8": "'int8' is not one of 'float32', 'tf32'",
    f"plan MODEL --devices {CPU} --precision bf16 --planner heft": "only planner 'auto' chooses a ",
    f"plan MODEL --devices {CPU}/onnxruntime --precision bf16": "onnxruntime has float32",
    f"plan MODEL --devices {CPU}/openvino:int8": "names the precision 'int8', which is none of ",
    f"plan MODEL --devices {CPU} --tolerance 2": "tolerance=2.0; give a part of the largest value",
    f"plan MODEL --devices {CPU} --engine onnxruntime.a=b": "no option 'a'; it has none",
    f"plan MODEL --devices {CPU} --engine directx.a=b": "for the engine 'directx', which is none",
    f"plan MODEL --devices {CPU}/a+b": f"write {CPU}/a,{CPU}/b",
    f"plan MODEL --devices {CPU}/": "does not name its engine; write",
    # numbers and words without a meaning
    "plan": "Missing argument",
    "bench MODEL --repeats 0": "--repeats 0",
    "report MODEL --repeats -1": "--repeats -1",
    "report MODEL --planners-s -1": "--planners-s -1",
    "report MODEL --planners-s nan": "--planners-s nan",
    "simulate MODEL --requests 0": "--requests 0",
    "explain MODEL --top 0": "--top 0",
    "profile MODEL --top -1": "--top -1",
    "profile MODEL --train": "leave the model out",
    "profile": "name a model",
    "profile --train --samples 0": "--samples 0",
    "check MODEL --all": "add --tasks",
    "check MODEL --tasks --devices cpu:x": "cpu:0-3",
    "check MODEL --tasks --devices null:0": "computes nothing",
    "check MODEL --tasks --probe smal": "--probe",
    "check FOLDER/numbers.onnx --tasks --probe zeros": "--probe zeros",
    f"inspect MODEL --device {TWO}": "names 2 devices" if "," in TWO else "",
    # shapes and values
    "inspect FOLDER/dynamic.onnx --shape z=2,4": "'z'",
    "inspect FOLDER/dynamic.onnx --shape x=2,5": "contradicts",
    "inspect FOLDER/dynamic.onnx --shape nonsense": "INPUT=1,3,224,224",
    "inspect FOLDER/dynamic.onnx --shape n=2,4": "has one size",
    "inspect FOLDER/pad.onnx --value p": "INPUT=16000",
    "inspect FOLDER/pad.onnx --value p=": "INPUT=16000",
    "inspect FOLDER/pad.onnx --value q=1": "'p'",
    "inspect FOLDER/pad.onnx --value p=0.5": "int64 has no such number",
    "run FOLDER/pad.onnx --value p=1,2": "--value p=[1, 2] is no value of the input 'p'",
    "inspect FOLDER/pad.onnx --value p=many": "it is no number",
    # phones
    "plan zoo:squeezenet --platform nokia": "there is no platform 'nokia'",
    f"plan {PHONE} --fresh": "--fresh",
    # outputs
    "plan MODEL --output FOLDER/other.onnx": "name it other.json",
    "optimize MODEL --output FOLDER/other.onnx": "name it other.json",
    "plan FOLDER/model.bin --output FOLDER/model.bin": "the model itself",
    "optimize FOLDER/model.bin --output FOLDER/model.bin": "the model itself",
    "run MODEL --output FOLDER": "it is a folder",
    # the cache
    "cache clear ../..": "'../..'",
    "cache clear weights": "entries that need them",
    "cache clear other": "'other'",
    "cache --cache FOLDER/file": "cannot be read: Not a directory; name its folder with",
    "cache trim --cache FOLDER/file": "--cache DIR",
    "cache clear --cache FOLDER/file": "--cache DIR",
}
"""Wrong usage: a command line, and a part of the message."""

ABSENT = {
    f"plan MODEL --devices {CPU}/onnxruntime:bf16": "computes in float32 on",
    "inspect FOLDER/none.onnx": "does not exist",
    "inspect FOLDER": "cannot read the model",
    "inspect zoo:alexnet": "squeezenet",
    "inspect FOLDER/empty.onnx": "empty.onnx",
    "inspect FOLDER/random.onnx": "bytes",
    "inspect FOLDER/truncated.onnx": "bytes",
    "inspect FOLDER/text.onnx": "bytes",
    "check FOLDER/text.onnx": "is not an ONNX model",
    "check FOLDER/text.onnx --tasks": "is not an ONNX model",
    "inspect FOLDER/operator.onnx": "Frob",
    "inspect FOLDER/domain.onnx": "my.ops",
    "inspect FOLDER/dynamic.onnx --shape n=1000000000000": "machine has",
    "plan MODEL --devices tpu:0": "unknown device",
    "plan MODEL --devices cpu:4000": "wants core 4000",
    f"plan MODEL --devices {CPU},{CPU}": "named twice",
    f"plan MODEL --devices {CPU}/directx": "there is no engine 'directx' here, only ",
    "plan MODEL --devices null:0/opencl": "engine 'opencl' does not drive 'null:0'",
    f"check MODEL --tasks --devices {CPU}/harmd": "harmd",
    "check MODEL --tasks --devices cpu:4000": "core 4000",
    "check MODEL --tasks --plan none.json": "none.json",
    "check MODEL --tasks --inputs none.npz": "none.npz",
    "run MODEL --plan none.json": "none.json",
    "run MODEL --inputs none.npz": "none.npz",
    f"simulate {PHONE} --devices cpu:9": "no device 'cpu:9'",
    f"plan MODEL --devices {CPU} --planner single --output /proc/no/plan": "cannot write",
    "report FOLDER/absent.onnx --output FOLDER/file/page.html": "is not a folder",
    "report FOLDER/text.onnx --output FOLDER/page.html": "is not an ONNX model",
}
"""What cannot be done here: a command line, and a part of the message."""


@pytest.fixture
def files(shared: CommandLine) -> CommandLine:
    """The command line with files that are no model, and with odd models."""
    folder, cases = shared.folder, {}
    if (folder / "file").exists():
        return shared
    whole = shared.model.read_bytes()
    cases["empty.onnx"], cases["text.onnx"] = b"", b"this is not a model\n" * 10
    cases["random.onnx"] = np.random.default_rng(0).bytes(4000)
    cases["truncated.onnx"], cases["model.bin"] = whole[: len(whole) // 2], whole
    one, out = [tensor_info("x", [1, 4])], [tensor_info("y", [1, 4])]
    odd = helper.make_node("Relu", ["x"], ["y"], domain="my.ops")
    shared.save(from_nodes([helper.make_node("Frob", ["x"], ["y"])], one, out), "operator.onnx")
    shared.save(from_nodes([odd], one, out), "domain.onnx")
    relu, number = helper.make_node("Relu", ["x"], ["y"]), onnx.TensorProto.INT64
    ends = tensor_info("x", ["n", 4]), tensor_info("y", ["n", 4])
    shared.save(from_nodes([relu], [ends[0]], [ends[1]]), "dynamic.onnx")
    whole_numbers = tensor_info("x", [4], number), tensor_info("y", [4], number)
    absolute = [helper.make_node("Abs", ["x"], ["y"], "abs")]
    shared.save(from_nodes(absolute, [whole_numbers[0]], [whole_numbers[1]]), "numbers.onnx")
    shared.save(
        from_nodes(
            [helper.make_node("Pad", ["x", "p"], ["y"])],
            [tensor_info("x", [1, 4]), tensor_info("p", [4], number)],
            [tensor_info("y", [1, "n"])],
        ),
        "pad.onnx",
    )
    for name, content in {**cases, "file": b""}.items():
        (folder / name).write_bytes(content)
    return shared


@pytest.mark.filterwarnings("ignore::coexec.errors.AssumedWarning")
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        *((words, WRONG_USAGE, message) for words, message in WRONG.items()),
        *((words, CANNOT, message) for words, message in ABSENT.items()),
    ],
)
def test_an_error_is_one_line_and_a_document(
    words: str, code: int, message: str, files: CommandLine
) -> None:
    if not message:
        pytest.skip("this process may use one core")
    before = {path.name for path in files.folder.iterdir()}
    has_cache = "--cache" not in words
    assert message in files.refused(*words.split(" "), code=code, cache=has_cache)
    error = files.json(*words.split(" "), code=code, cache=has_cache)
    assert message in error["error"]["message"] and error["schema"] == SCHEMA
    assert {path.name for path in files.folder.iterdir()} - before <= {"cache"}


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("plan", "UsageError"),
        ("plan MODEL --planner fast", "UsageError"),
        ("plan MODEL --devices cpu:x", "DeviceNameError"),
        ("plan MODEL --devices cpu:4000", "DeviceError"),
        ("inspect none.onnx", "ModelError"),
        ("run MODEL --plan none.json", "PlanError"),
        ("run MODEL --inputs none.npz", "InputError"),
        (f"plan MODEL --devices {CPU} --planner single --output /proc/no/plan", "StoreError"),
    ],
)
def test_the_kind_of_an_error_is_its_class(words: str, kind: str, shared: CommandLine) -> None:
    code = WRONG_USAGE if kind in ("UsageError", "DeviceNameError") else CANNOT
    assert shared.json(*words.split(), code=code)["error"]["kind"] == kind


@pytest.mark.parametrize("size", BAD_SIZES)
def test_sizes_that_are_none(size: str, shared: CommandLine) -> None:
    assert "8GB" in shared.refused("cache", "trim", f"--to={size}")


def test_plans_that_are_none_or_of_another_model(cli: CommandLine) -> None:
    plan = str(cli.folder / "plan.json")
    for text, part in PLANS.items():
        Path(plan).write_text(text)
        assert part in cli.refused("run", "MODEL", "--plan", plan, code=CANNOT)
    other = cli.save(branches(width=2), "other.onnx")
    cli("plan", other, "--devices", TWO, "--planner", "heft", "--output", plan)
    assert "another model" in cli.refused("run", "MODEL", "--plan", plan, code=CANNOT)
    facts = json.loads(Path(plan).read_text())
    facts["made_for"]["shapes"] = {"absent": [1, 3]}
    Path(plan).write_text(json.dumps(facts))
    line = cli.refused("run", "MODEL", "--plan", plan, code=CANNOT)
    assert "made for another model, with" in line
    assert not list(cli.folder.glob(".*"))


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "link"])
def test_external_data_stays_in_its_folder(location: str, cli: CommandLine) -> None:
    inside = cli.folder / "inside"
    inside.mkdir()
    (cli.folder / "secret").write_bytes(bytes(64))
    (inside / "link").symlink_to(cli.folder / "secret")
    proto = from_nodes(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [tensor_info("x", [1, 4])],
        [tensor_info("y", [1, 4])],
        {"w": np.ones((1, 4), np.float32)},
    )
    weight = proto.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)
    (inside / "m.onnx").write_bytes(proto.SerializeToString())
    line = cli.refused("inspect", str(inside / "m.onnx"), code=CANNOT)
    assert location in line and "outside" in line


@pytest.mark.parametrize("content", [b"not an archive", None], ids=["file", "shape"])
def test_inputs_that_do_not_fit_are_refused_before_planning(
    content: bytes | None, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Chooser, "make", lambda *_: pytest.fail("it plans"))
    inputs = cli.folder / "in.npz"
    if content is None:
        np.savez(inputs, x=np.zeros((1, 3, 5, 5), np.float32))
    else:
        inputs.write_bytes(content)
    line = cli.refused("run", "MODEL", "--inputs", str(inputs), code=CANNOT)
    assert ("[1, 3, 5, 5]" if content is None else "in.npz") in line


@pytest.mark.filterwarnings("always::coexec.errors.CacheWarning")
def test_a_damaged_store_and_a_cache_that_is_no_folder(cli: CommandLine) -> None:
    store = cli.folder / "cache" / "profiles-4.sqlite"
    store.parent.mkdir()
    store.write_bytes(b"not a database" * 100)
    said = cli.both("plan", "MODEL", "--devices", TWO, "--planner", "heft")[1]
    assert "warning: " in said and "sqlite was damaged" in said
    (cli.folder / "file").write_text("")
    for name in ("FOLDER/file", "/proc/coexec-cli"):
        said = cli.both("inspect", "MODEL", "--cache", name, cache=False)[1]
        assert "cannot be written" in said and "--cache" in said and said.count("\n") == 1


def test_an_opaque_task_is_refused_on_a_phone_in_one_message(cli: CommandLine) -> None:
    model = """<ir_version: 8, opset_import: ["": 17]>
        g (float[4,8] x) => (float[4,8] y) {
          places = NonZero(x)
          count = Shape(places)
          number = Cast<to = 1>(count)
          total = ReduceSum<keepdims = 0>(number)
          y = Add(x, total)
        }"""
    path = cli.save(onnx.parser.parse_model(model), "counting.onnx")
    line = cli.refused("plan", path, "--platform", "kirin_990", code=CANNOT)
    assert "runs on none of cpu:6-7, gpu:0, because the shape of 'places'" in line
    assert "only ONNX Runtime runs such a task" in line


@pytest.mark.filterwarnings("always")
def test_a_warning_is_one_line(cli: CommandLine) -> None:
    turned = helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])
    wrong = from_nodes([turned], [tensor_info("x", [2, 3])], [tensor_info("y", [2, 3])])
    line = cli.refused("inspect", cli.save(wrong, "wrong.onnx"), code=0)
    assert line.startswith("coexec: warning: the model 'wrong' declares 1 wrong shapes: 'y' as")
