"""`InferenceSession` in place of ONNX Runtime's."""

from contextlib import nullcontext
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import coexec
from coexec.engines.detect import usable_cores
from coexec.errors import CacheWarning, InputError, UsageError
from coexec.model.difference import worst_difference
from tests.helpers import quick_choice as quick
from tests.helpers.exports import EXPORTS
from tests.helpers.small_models import branches, from_nodes, tensor_info

DEVICES = [f"cpu:{core}" for core in usable_cores()[:2]]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> coexec.InferenceSession:
    cache = tmp_path_factory.mktemp("session")
    with quick.quick_choice():
        return coexec.InferenceSession(branches(), devices=DEVICES, cache=cache, background=False)


def test_changing_one_import_is_enough(session: coexec.InferenceSession) -> None:
    rival = onnxruntime.InferenceSession(
        branches().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for ours, theirs in (
        (session.get_inputs(), rival.get_inputs()),
        (session.get_outputs(), rival.get_outputs()),
    ):
        assert [(a.name, a.shape, a.type) for a in ours] == [
            (b.name, b.shape, b.type) for b in theirs
        ]
    x = np.random.default_rng(1).standard_normal((1, 3, 20, 20)).astype(np.float32)
    for names in (None, ["joined"], ["y", "joined"]):
        for a, b in zip(session.run(names, {"x": x}), rival.run(names, {"x": x}), strict=True):
            assert worst_difference(a, b) < 1e-5


def test_outputs_belong_to_the_caller(session: coexec.InferenceSession) -> None:
    rng = np.random.default_rng(2)
    xs = [rng.standard_normal((1, 3, 20, 20)).astype(np.float32) for _ in range(2)]
    first = session.run(["y"], {"x": xs[0]})[0]
    kept = first.copy()
    session.run(["y"], {"x": xs[1]})
    assert np.array_equal(first, kept)


def test_inputs_of_any_stride(session: coexec.InferenceSession) -> None:
    x = np.random.default_rng(3).standard_normal((1, 20, 20, 3)).astype(np.float32)
    turned = x.transpose(0, 3, 1, 2)
    a = session.run(["y"], {"x": turned})[0]
    assert np.array_equal(a, session.run(["y"], {"x": turned.copy()})[0])


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "'x' is missing"),
        ({"x": np.zeros((1, 3, 20, 20), np.float32), "z": 1}, "no input 'z'"),
        ({"x": np.zeros((1, 3, 21, 20), np.float32)}, r"\[1, 3, 21, 20\].*\[1, 3, 20, 20\]"),
        ({"x": np.zeros((1, 3, 20, 20))}, "float64.*float32"),
    ],
)
def test_wrong_feeds(session: coexec.InferenceSession, feeds: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        session.run(None, feeds)


def test_wrong_names(session: coexec.InferenceSession) -> None:
    with pytest.raises(InputError, match=r"no output 'z'.*'y'"):
        session.run(["z"], {"x": np.zeros((1, 3, 20, 20), np.float32)})
    with pytest.warns(UserWarning, match="not in available provider names"):  # ONNX Runtime's own
        coexec.InferenceSession(branches(), providers=["NoExecutionProvider"]).close()


def test_the_first_answer_needs_little(tmp_path: Path) -> None:
    """What reads, plans and describes models is not imported before it is needed."""
    import subprocess
    import sys

    onnx.save(branches(), str(tmp_path / "m.onnx"))
    program = (
        "import sys, numpy as np, onnxruntime; before = set(sys.modules); import coexec;"
        " s = coexec.InferenceSession(sys.argv[1], cache=sys.argv[2]);"
        " s.run(None, {'x': np.ones((1, 3, 20, 20), np.float32)});"
        " print(*{m.partition('.')[0] for m in set(sys.modules) - before});"
        " print(*(m for m in sys.modules if m.count('.') < 2))"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "m.onnx"), str(tmp_path / "c")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    packages, modules = map(set, map(str.split, done.stdout.splitlines()))
    assert "coexec" in packages
    heavy = {
        "onnx",
        "onnx_ir",
        "ml_dtypes",
        "ortools",
        "highspy",
        "multiprocessing",
        "email",
        "rich",
        "typer",
    }
    assert not packages & heavy
    assert not modules & {"importlib.metadata", "numpy.random"}


def test_second_start_needs_no_optimizer(tmp_path: Path) -> None:
    import subprocess
    import sys

    onnx.save(branches(), str(tmp_path / "m.onnx"))
    program = quick.PROGRAM + (
        "import sys, coexec; s = coexec.InferenceSession(sys.argv[1], devices=sys.argv[2],"
        " cache=sys.argv[3], background=False);"
        " print('onnx_ir' in sys.modules)"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "m.onnx"), ",".join(DEVICES)]
    said = [
        subprocess.run([*words, str(tmp_path / "c")], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert said[0].stdout.split() == ["True"]
    assert said[1].stdout.split() == ["False"]


@pytest.mark.skipif(not EXPORTS.is_dir(), reason=f"{EXPORTS} with the real exports is absent")
@pytest.mark.parametrize("name", ["squeezenet", "mobilenet_v3", "lstm", "style_transfer"])
def test_real_exports(name: str, tmp_path: Path) -> None:
    import importlib.util

    spec = importlib.util.spec_from_file_location("fill", EXPORTS / "fill.py")
    assert spec and spec.loader
    fill = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fill)
    proto = fill.fill(str(EXPORTS / f"{name}.onnx"))
    with coexec.InferenceSession(proto, devices=DEVICES, cache=tmp_path) as session:
        rng = np.random.default_rng(0)
        feeds = {
            i.name: rng.standard_normal(i.shape).astype(np.float32) for i in session.get_inputs()
        }
        rival = onnxruntime.InferenceSession(
            proto.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        for a, b in zip(session.run(None, feeds), rival.run(None, feeds), strict=True):
            assert worst_difference(a, b) < 1e-4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"path_or_bytes": None}, "the model is a NoneType"),
        ({"path_or_bytes": "zoo:lstm", "devices": []}, "names no devices"),
        ({"path_or_bytes": "zoo:lstm", "devices": [1]}, "names no devices"),
        ({"path_or_bytes": "zoo:lstm", "devices": DEVICES[0], "planner": "nope"}, "no planner"),
        ({"path_or_bytes": "zoo:lstm", "waiting": "bored"}, "waiting is 'bored'; it is 'passive'"),
    ],
)
def test_wrong_arguments(words: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        coexec.InferenceSession(**words, cache=tmp_path)


def test_feeds_that_are_no_arrays(session: coexec.InferenceSession) -> None:
    for feeds, message in (
        (None, "give a dict"),
        ({"x": [[1], [1, 2]]}, "is not an array"),
    ):
        with pytest.raises(InputError, match=message):
            session.run(None, feeds)
    with pytest.raises(InputError, match="give a list"):
        session.run("y", {"x": np.zeros((1, 3, 20, 20), np.float32)})


DAMAGED = [
    *product(
        ("models/*", "lowered/*", "weights/*/*", "plans/*"), ("empty", "cut", "gone", "random")
    ),
    *product(["choices/*"], ["cut", "gone"]),
]  # fmt: skip


@pytest.mark.sampled(12)
@pytest.mark.usefixtures("quick_choice")
@pytest.mark.parametrize(("kind", "damage"), DAMAGED)
def test_damaged_caches_never_give_wrong_results(kind: str, damage: str, tmp_path: Path) -> None:
    feeds = {"x": np.ones((1, 3, 20, 20), np.float32)}
    words = {"devices": DEVICES, "cache": tmp_path, "background": False}
    if kind.startswith("choices"):
        quick = {"planners": "heft", "shortlist": 1, "requests": "loop"}
        words |= {"planner": "auto", "planner_options": quick}
    else:  # a plan that has something to compile for both devices
        first, *_, last = coexec.load(branches()).graph.tasks
        pins = dict(zip((first.name, last.name), DEVICES, strict=False))
        words |= {"planner": "heft", "pins": pins}
    with coexec.InferenceSession(branches(), **words) as session:
        expected = session.run(None, feeds)
    files = list(tmp_path.glob(kind))
    assert files
    for file in files:
        content = file.read_bytes()
        if damage == "gone":
            file.unlink()
        else:
            file.write_bytes({"empty": b"", "cut": content[:-20], "random": b"\x07" * 50}[damage])
    if not kind.startswith("plans"):
        for file in tmp_path.glob("plans/*"):
            file.unlink()
    quiet = damage == "gone"
    with nullcontext() if quiet else pytest.warns(CacheWarning, match="was damaged"):
        session = coexec.InferenceSession(branches(), **words)
    with session:
        for a, b in zip(session.run(None, feeds), expected, strict=True):
            assert np.array_equal(a, b)


@pytest.mark.parametrize("name", [" x ", "\n", 'it\'s "x"', "../x", "t[0:1, 0:4]", "x" * 100_000])
def test_names_are_any_text(name: str, tmp_path: Path) -> None:
    """Of an input, a tensor between two devices, an output, a weight and a node."""
    nodes = [
        helper.make_node("MatMul", ["in" + name, "w" + name], [name], name),
        helper.make_node("Relu", [name], ["y" + name]),
        helper.make_node("Tanh", [name], ["z" + name]),
    ]
    outputs = [tensor_info(each + name, [2, 4]) for each in "yz"]
    weights = {"w" + name: np.eye(4, dtype=np.float32)}
    model = from_nodes(nodes, [tensor_info("in" + name, [2, 4])], outputs, weights)
    of_two = coexec.InferenceSession(model, devices=DEVICES, planner="heft", cache=tmp_path)
    assert of_two.degraded is None
    x = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    y, z = of_two.run(["y" + name, "z" + name], {"in" + name: x})
    assert worst_difference(y, np.maximum(x, 0)) < 1e-5
    assert worst_difference(z, np.tanh(x)) < 1e-5
