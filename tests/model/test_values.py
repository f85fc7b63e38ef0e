"""Values of types that numpy does not have, into ONNX Runtime and out of it."""

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

from coexec.arrays import dtype_of_ort, numpy_type
from coexec.model.reference_session import plain_session
from coexec.model.values import FOREIGN, run_session

VALUES = {
    **{name: [1, 0, 3, 1, 2] for name in (*FOREIGN, "int4", "uint4", "uint2")},
    "int2": [1, 0, -2, -1, 1],
    "float8_e8m0fnu": [1, 0.5, 4, 1, 2],
}
"""Values that the types can hold exactly."""


@pytest.mark.parametrize(("name", "values"), VALUES.items())
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 3)])
def test_elements_of_any_width(name: str, values: list[float], shape: tuple[int, ...]) -> None:
    """As ml_dtypes converts them; sizes that leave a part of the last byte, too."""
    x = np.resize(np.array(values, np.float32), shape)
    expected = x.astype(np.dtype(getattr(ml_dtypes, name)))
    kind = helper.np_dtype_to_tensor_dtype(expected.dtype)
    nodes = [
        helper.make_node("Cast", ["x"], ["y"], to=kind),
        helper.make_node("Cast", ["fed"], ["back"], to=TensorProto.FLOAT),
    ]
    of = helper.make_tensor_value_info
    inputs = [of("x", TensorProto.FLOAT, shape), of("fed", kind, shape)]
    outputs = [of("y", kind, shape), of("back", TensorProto.FLOAT, shape)]
    model = helper.make_model(
        helper.make_graph(nodes, "casts", inputs, outputs),
        opset_imports=[helper.make_opsetid("", 25)],
        ir_version=11,
    )
    session = plain_session(model)
    element = session.get_outputs()[0].type.removeprefix("tensor(").removesuffix(")")
    if name not in FOREIGN:  # those are named by coexec, from the model's own types
        assert numpy_type(dtype_of_ort(element)) == expected.dtype
    y, back = run_session(session, ["y", "back"], {"x": x, "fed": expected})
    assert y.dtype == expected.dtype and y.shape == shape
    np.testing.assert_array_equal(y.astype(np.float32), x)
    np.testing.assert_array_equal(back, x)
