"""Every node test of the ONNX project that ONNX Runtime passes is planned and executed, too."""

import pytest

from coexec.cache import Cache
from coexec.errors import first_line
from tests.helpers.node_cases import WAYS, node_cases, run_here, run_on_onnx_runtime

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
    "rotary_embedding_with_rotary_dim_expanded",
]  # fmt: skip
"""Bodies, sequences, data-dependent shapes, texts, foreign and quantized types."""
LEAST = 1346
"""Tests that ONNX Runtime 1.31 passes; more where types count that its Python calls reject."""

pytestmark = pytest.mark.filterwarnings("ignore::coexec.errors.ModelWarning")


@pytest.mark.long
@pytest.mark.parametrize("name", SAMPLE)
def test_sample(name: str, cache: Cache) -> None:
    for way in WAYS:
        run_here(node_cases()[name], way, cache)


@pytest.mark.conformance
@pytest.mark.parametrize("way", WAYS)
def test_all_that_onnx_runtime_passes(way: str, cache: Cache) -> None:
    passed, failed = 0, {}
    for name, case in node_cases().items():
        try:
            run_on_onnx_runtime(case)
        except Exception:  # what ONNX Runtime refuses or computes otherwise, it may here
            continue
        try:
            run_here(case, way, cache)
            passed += 1
        except Exception as error:
            failed[name] = first_line(error)
    assert not failed and passed >= LEAST, (passed, failed)
