"""The ONNX project's backend tests on each engine and across devices, by ONNX's own runner: none
fails that ONNX Runtime's own session passes."""

from collections.abc import Iterable
from typing import Any

import pytest

from coexec.cache import Cache
from coexec.engines.detect import usable_cores
from coexec.engines.registry import processors
from coexec.errors import InfeasibleError
from coexec.selection.planning_context import PlanningContext
from tests.helpers.onnx_backend import Assign, device_names
from tests.helpers.suite import Suite, TestOutcome, alternate, by_heft, counts

EVERY = {"onnxruntime": 1, "cpp": 4, "openvino": 4}
"""By engine, of how many tests one is run: kernels are compiled."""
PARTS = 8
"""Tests of this file that all tests of ONNX are dealt to, for several processes."""
LEAST = 0.8
"""Of all tests of a part, those that pass. ONNX Runtime 1.32 passes 0.88 to 0.96 of each part."""
WAYS = (alternate, by_heft)
"""Plans on two devices."""
SAMPLE = [
    "add", "if", "if_seq", "loop11", "loop13_seq", "scan9_sum", "scan_sum", "identity_sequence",
    "sequence_insert_at_back", "split_to_sequence_1", "sequence_map_add_2_sequences",
    "nonmaxsuppression_two_classes", "nonzero_example", "reshape_reordered_all_dims", "tile",
    "slice", "resize_upsample_sizes_nearest", "top_k", "constantofshape_int_zeros",
    "equal_string", "string_concat", "string_split_basic", "ai_onnx_ml_label_encoder_string_int",
    "ai_onnx_ml_array_feature_extractor", "tfidfvectorizer_tf_only_bigrams_skip0",
    "castlike_FLOAT_to_BFLOAT16", "castlike_BFLOAT16_to_FLOAT", "castlike_FLOAT_to_FLOAT8E4M3FN",
    "castlike_no_saturate_FLOAT_to_FLOAT8E5M2", "qlinearmatmul_2D_uint8_float32",
    "dynamicquantizelinear_expanded", "matmulinteger", "sce_none_log_prob_expanded",
    "group_normalization_example_expanded", "lstm_defaults", "affine_grid_2d_expanded",
    "rotary_embedding_with_rotary_dim_expanded", "sequence_model6", "sequence_model7",
]  # fmt: skip
"""Bodies, sequences, data-dependent shapes, texts, foreign and quantized types."""


def on_core(engine: str, cache: Cache) -> Suite:
    """Skips the test, with the reason, where the engine cannot be used."""
    (cpu,) = [driven for driven in processors("cpu") if driven.name == "cpu"]
    reason = cpu.by[engine].unusable if engine in cpu.by else f"{engine} is not installed"
    if reason is not None:
        pytest.skip(reason)
    return Suite(device_names(f"cpu:{usable_cores()[-1]}/{engine}"), cache)


def on_two_cores(way: Assign, cache: Cache) -> Suite:
    cores = usable_cores()[:2]
    if len(cores) < 2:
        pytest.skip("two devices need two cores")
    return Suite([f"cpu:{core}/onnxruntime" for core in cores], cache, way)


def failed(outcomes: Iterable[TestOutcome]) -> dict[str, str]:
    return {each.name: each.why for each in outcomes if each.outcome == "failed"}


@pytest.mark.long
@pytest.mark.parametrize(("name", "outcome"), [("test_add", "failed"), ("test_adam", "excluded")])
def test_only_what_onnx_runtime_fails_by_itself_is_left_out(
    name: str, outcome: str, cache: Cache
) -> None:
    def failing(work: PlanningContext) -> Any:
        raise InfeasibleError("no plan")

    found = on_core("onnxruntime", cache)._replace(assign=failing).outcome(name)
    assert found.outcome == outcome and found.why


@pytest.mark.long
@pytest.mark.parametrize("engine", EVERY)
def test_few(engine: str, cache: Cache) -> None:
    found = list(on_core(engine, cache).outcomes(parts=400))
    assert not failed(found) and counts(found)["whole"]


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_few_on_two_devices(way: Assign, cache: Cache) -> None:
    found = list(on_two_cores(way, cache).outcomes(parts=100))
    assert not failed(found) and counts(found)["whole"]


@pytest.mark.long
@pytest.mark.parametrize("name", SAMPLE)
def test_sample(name: str, cache: Cache) -> None:
    found = [on_two_cores(way, cache).outcome(f"test_{name}") for way in WAYS]
    assert not failed(found) and counts(found)["whole"] == len(WAYS)


@pytest.mark.conformance
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(("engine", "every"), EVERY.items())
def test_many(engine: str, every: int, part: int, cache: Cache) -> None:
    found = list(on_core(engine, cache).outcomes(part * every, PARTS * every))
    assert not failed(found) and counts(found)["excluded"] <= (1 - LEAST) * len(found)
    assert all(each.why for each in found if each.outcome != "whole")


@pytest.mark.conformance
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("way", WAYS)
def test_all_on_two_devices(way: Assign, part: int, cache: Cache) -> None:
    found = list(on_two_cores(way, cache).outcomes(part, PARTS))
    assert not failed(found) and counts(found)["whole"] >= LEAST * len(found)
