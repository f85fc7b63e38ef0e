"""Whatever a session is given: it starts, or one line says what was given and what is wanted."""

import warnings
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

import coexec
from coexec.arguments import check_feeds
from coexec.engines.detect import usable_cores
from coexec.errors import CoexecError, InputError, UsageError
from coexec.graph.graph import Tensor
from tests.helpers.examples import scaled
from tests.helpers.small_models import branches, from_nodes, tensor_info

CPU = f"cpu:{usable_cores()[0]}"
SMALL = from_nodes(
    [helper.make_node("Relu", ["x"], ["y"])], [tensor_info("x", [2])], [tensor_info("y", [2])]
)


class Bytes:
    """A path of bytes."""

    def __fspath__(self) -> bytes:
        return b"m.onnx"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"path_or_bytes": "a\0b.onnx"}, r"the model's path is 'a\\x00b.onnx'; give a text"),
        ({"path_or_bytes": PurePosixPath("a\0b")}, "without a zero character"),
        ({"path_or_bytes": Bytes()}, "the model's path is b'm.onnx'"),
        ({"path_or_bytes": 5}, "the model is a int; give a path"),
        ({"path_or_bytes": SimpleNamespace(graph=1)}, "the model is a SimpleNamespace"),
        ({"providers": 5}, "providers=5; give a list of names"),
        ({"providers": "CPUExecutionProvider"}, "give a list of names"),
        ({"providers": [5]}, r"providers=\[5\]; give a list"),
        ({"providers": [()]}, "give a list of names"),
        ({"devices": 5}, "devices=5 names no devices"),
        ({"devices": ","}, r"devices=\[\] names no devices"),
        ({"devices": {CPU: 1}}, "names no devices"),
        ({"devices": [CPU, None]}, "names no devices"),
        ({"planner": 5}, "planner=5 is a int; give a name"),
        ({"planner": ["auto"]}, "is a list; give a name"),
        ({"planner_options": 5}, "planner_options=5; give a dict by name"),
        ({"planner_options": [("a", 1)]}, r"planner_options=\[.*give a dict by name"),
        ({"planner_options": {5: 1}}, "planner_options={5: 1}; give a dict"),
        ({"planner": "auto", "planner_options": {"shortlist": "x"}}, "shortlist .* is 'x'"),
        ({"planner": "auto", "planner_options": {"shortlist": 0}}, "shortlist .* is 0"),
        (
            {"planner": "auto", "planner_options": {"requests": "rested"}},
            "of both, paced, loop",
        ),
        ({"planner": "auto", "planner_options": {"requests": []}}, r"requests .* is \[\]"),
        ({"shapes": 5}, "shapes=5; give a dict by name"),
        ({"shapes": {"x": 5}}, "--shape x=5 contradicts the model"),
        ({"shapes": {"x": 5.0}}, r"shapes\['x'\] is 5.0; give a tuple of integers"),
        ({"shapes": {"x": "12"}}, r"shapes\['x'\] is '12'"),
        ({"shapes": {"x": (1.5,)}}, r"shapes\['x'\] is \(1.5,\)"),
        ({"shapes": {"x": (None,)}}, r"shapes\['x'\] is \(None,\)"),
        ({"shapes": {"x": (True,)}}, r"shapes\['x'\] is \(True,\)"),
        ({"shapes": {"x": (-2,)}}, "--shape x=-2 has the size -2; give a number from 0 on"),
        ({"cache": 5}, "cache=5 is a int; give the path of a folder"),
        ({"cache": "a\0b"}, "cache is 'a.x00b'; give a text without a zero"),
        ({"engine_options": "fp16"}, "engine_options='fp16'; give a dict by name, as in engine_o"),
        ({"engine_options": {"opencl": "fp16"}}, r"engine_options\['opencl'\]='fp16'; give a dict"),
        (
            {"engine_options": {"opencl": {"precision": 16}}},
            r"engine_options\['opencl'\]\['precision'\] is 16; give a text",
        ),
        (
            {"engine_options": {"opencl": {"precision": "fp8"}}},
            r"opencl\.precision='fp8': it is one of float32, fp16",
        ),
        (
            {"engine_options": {"opencl": {"speed": "1"}}},
            "opencl has no option 'speed'",
        ),
        (
            {"engine_options": {"directx": {}}},
            "the engine 'directx', which is none of cpp, cuda, null, onnx",
        ),
        ({"engine_options": {5: {}}}, "engine_options={5: {}}; give a dict by name"),
        ({"pins": [("a", CPU)]}, "pins=.*give a dict by name"),
        ({"pins": {"a": 5}}, r"pins\['a'\] is 5; give a text"),
        (
            {"planer": "x", "device": CPU, "foo": 1},
            r"InferenceSession takes no 'planer' \(did you mean 'planner'\?\), 'device' \(did you "
            r"mean 'devices'\?\), 'foo'; it takes path_or_bytes, sess_options.*, devices, planner,",
        ),
        ({"ses_options": None}, r"no 'ses_options' \(did you mean 'sess_options'\?\)"),
        (
            {"planner": "heft", "planner_options": {"sead": 1}},
            "planner heft has no option 'sead'",
        ),
        (
            {"planner": "auto", "planner_options": {"shortlst": 1}},
            r"auto has no option 'shortlst' \(did you mean 'shortlist'\?\); it has planners, short",
        ),
        (
            {"engine_options": {"opencl": {"presicion": "fp16"}}},
            r"opencl has no option 'presicion' \(did you mean 'precision'\?\); it has .*tuning",
        ),
        ({"background": "no"}, "background='no'; give True or False"),
        ({"replan": "x"}, "replan='x'; give a share above 0"),
        ({"replan": True}, "replan=True; give a share"),
        ({"replan": 0}, "replan=0; give a share"),
        ({"replan": -0.5}, "replan=-0.5"),
        ({"replan": float("nan")}, "replan=nan"),
        ({"memory_limit": 0}, "memory_limit=0; give bytes, or a text such as '2GiB'"),
        ({"memory_limit": "much"}, "memory_limit: 'much' is not a size"),
        ({"memory_limit": 1.5e9}, "memory_limit=1500000000.0; give bytes"),
        ({"waiting": 3}, "waiting is 3; it is 'passive' or 'active'"),
        ({"waiting": ["passive"]}, r"waiting is \['passive'\]"),
    ],
)
def test_arguments_without_a_meaning(words: dict[str, Any], message: str, tmp_path: Path) -> None:
    words = {"path_or_bytes": SMALL, "devices": CPU, "planner": "single", "cache": tmp_path} | words
    with pytest.raises(UsageError, match=message) as caught:
        coexec.InferenceSession(**words)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        {"path_or_bytes": SMALL.SerializeToString()},
        {"sess_options": onnxruntime.SessionOptions(), "provider_options": [{}]},
        {"providers": (("CPUExecutionProvider", {"a": 1}),)},
        {"providers": []},
        {"devices": (CPU,)},
        {"memory_limit": "2GiB"},
        {"shapes": {"x": np.array([2])}},
        {"shapes": {"x": [np.int64(2)]}},
        {"shapes": {}, "engine_options": {"opencl": {}}, "pins": {}, "planner_options": {}},
        {"replan": np.float32(0.5), "pins": {"*": CPU}},
        {"background": np.bool_(True)},
        {"enable_fallback": 0, "disabled_optimizers": None, "read_config_from_model": 1},
    ],
)
def test_arguments_with_one(words: dict[str, Any], tmp_path: Path) -> None:
    words = {"path_or_bytes": SMALL, "devices": CPU, "planner": "single", "cache": tmp_path} | words
    with coexec.InferenceSession(**words) as session:
        found = session.run(None, {"x": np.array([-1, 2], np.float32)})[0]
    assert np.array_equal(found, [0, 2])


def test_load_takes_the_same(tmp_path: Path) -> None:
    for source, message in ((5, "the model is a int"), ("a\0b", "zero character")):
        with pytest.raises(UsageError, match=message):
            coexec.load(source)
    with pytest.raises(UsageError, match="shapes=5; give a dict"):
        coexec.load(SMALL, shapes=5)


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.floats(),
    st.text(max_size=4),
    st.binary(max_size=4),
    st.lists(st.integers(0, 2), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(0, 2), max_size=2),
    st.tuples(st.text(max_size=2)),
    st.just(object()),
)
NAMES = [
    "path_or_bytes",
    "providers",
    "devices",
    "planner",
    "planner_options",
    "shapes",
    "engine_options",
    "background",
    "pins",
    "replan",
    "waiting",
]


@settings(max_examples=scaled(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(words=st.dictionaries(st.sampled_from(NAMES), ANYTHING, min_size=1, max_size=3))
def test_anything_at_all(words: dict[str, Any], cache: Any) -> None:
    plain = {"path_or_bytes": SMALL, "devices": CPU, "planner": "single", "cache": cache.root}
    if words.get("devices", 0) is None or words.get("planner", "") == "auto":
        return  # they start a search for the best plan, which takes its time
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ONNX Runtime warns of providers that it has not
            coexec.InferenceSession(**(plain | words)).close()
    except CoexecError as error:
        assert len(str(error).splitlines()) == 1


class Refusing:
    """An object that is no array, like a tensor of another library that needs a gradient."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("call .detach() first\nand more")


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ([1], "the feeds are a list"),
        ({"x": Refusing()}, "input 'x' is not an array: call .detach"),
        ({"x": [[1], [1, 2]]}, "input 'x' is not an array"),
        ({"x": object()}, "dtype object"),
        ({"x": np.zeros(2, np.float32), 1: 2, "z": 3}, "no input 1; the model takes 'x' .2. float"),
        ({"z": 3}, "input 'x' is missing and the model has no input 'z'; the model takes 'x'"),
        ({"x": np.zeros((2, 1), np.float32)}, r"shape \[2, 1\], the model takes \[2\]"),
    ],
)
def test_feeds_that_the_model_does_not_take(feeds: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        check_feeds({"x": Tensor("x", (2,), "float32")}, feeds)
    assert len(str(caught.value).splitlines()) == 1


def test_a_model_of_the_users_own_object(tmp_path: Path) -> None:
    import onnx_ir as ir

    words: dict[str, Any] = {"devices": CPU, "planner": "single", "cache": tmp_path}
    with coexec.InferenceSession(ir.from_proto(branches()), **words) as session:
        assert session.get_inputs()[0].name == "x"
