# ruff: noqa: E501
"""What rewrites and lowering make of small models, as text before and after.

Lowered models are written by hand, in operators like ONNX Runtime's with blocks of four channels:
so the texts are the same on every machine.
"""

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent, indent

import onnx_ir as ir
import pytest

from coexec.cache import Cache
from coexec.engines.onnxruntime.lowering import lower
from coexec.lowering.entry import import_lowered
from coexec.model.rewrites import activate_before_concat, rewrite
from tests.helpers.lowered_text import format_lowered, format_module, parse_module
from tests.helpers.lowering_texts import INNER, NCHWC, Part, modules, relowered, rewritten
from tests.helpers.model_text import parse_model


def is_text(made: str, expected: str) -> None:
    """Equal texts, but for the indentation of ``expected``."""
    assert made == dedent(expected).strip(), f"the text is now:\n{indent(made, '    ')}"


REWRITES: dict[str, tuple[Callable[[ir.Model], object], str, str]] = {
    "an activation moves in front of a Concat": (
        activate_before_concat,
        """
        model m opset 17 (x: 1x4x8x8)
          v = tensor(4x4x1x1)
          w = tensor(4x4x1x1)
          a: 1x4x8x8 = Conv(x, v)
          b: 1x4x8x8 = Conv(x, w)
          c: 1x8x8x8 = Concat(a, b) axis=1
          d: 1x8x8x8 = Relu(c)
          y: 1x8x8x8 = Neg(d)
        return y
        """,
        """
        model m opset 17 (x: 1x4x8x8)
          v = tensor(4x4x1x1)
          w = tensor(4x4x1x1)
          a: 1x4x8x8 = Conv(x, v)
          b: 1x4x8x8 = Conv(x, w)
          c.Relu.0: 1x4x8x8 = Relu(a)
          c.Relu.1: 1x4x8x8 = Relu(b)
          c: 1x8x8x8 = Concat(c.Relu.0, c.Relu.1) axis=1
          y: 1x8x8x8 = Neg(c)
        return y
        """,
    ),
    "each reader of a quantised value dequantises it": (
        rewrite,
        """
        model m opset 17 (x: 4 uint8)
          s = tensor(scalar, [0.5])
          a: 4 = DequantizeLinear(x, s)
          b: 4 = Neg(a)
          c: 4 = Exp(a)
        return b, c
        """,
        """
        model m opset 17 (x: 4 uint8)
          s = tensor(scalar, [0.5])
          a: 4 = DequantizeLinear(x, s)
          a.0: 4 = DequantizeLinear(x, s)
          b: 4 = Neg(a)
          c: 4 = Exp(a.0)
        return b, c
        """,
    ),
    "a product with a HardSigmoid is a HardSwish": (
        rewrite,
        """
        model m opset 17 (x: 1x4x8x8)
          h: 1x4x8x8 = HardSigmoid(x) alpha=0.16666667 beta=0.5
          y: 1x4x8x8 = Mul(x, h)
        return y
        """,
        """
        model m opset 17 (x: 1x4x8x8)
          y: 1x4x8x8 = HardSwish(x)
        return y
        """,
    ),
}


@pytest.mark.parametrize("name", REWRITES)
def test_a_rewrite(name: str) -> None:
    how, before, after = REWRITES[name]
    is_text(rewritten(how, before), after)


def test_bodies_are_written_behind_their_node() -> None:
    text = """
        model m opset 17 (c: scalar bool, x: 4)
          a: 4 = Exp(x)
          y: 4 = If(c)
            else_branch body ()
              n = tensor(1, [2.0])
              d: 4 = Mul(a, n)
            return d
            then_branch body ()
              b: 4 = Neg(a)
            return b
        return y
        """
    is_text(rewritten(lambda model: None, text), text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("graph", "the first line is not of the form"),
        ("model m opset 17 (x: 4)\n  y: 4 = Exp(x)", "the last line is no: return"),
        ("model m opset 17 (x: 4)\n  y: 4 = Exp x\nreturn y", "expected '('"),
        ("model m opset 17 (x: 4)\n  y: 4 = Exp(x) to=\nreturn y", "expected a value"),
        ("model m opset 17 (x: four)\nreturn x", "expected a shape"),
    ],
)
def test_an_error_names_the_line(text: str, expected: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_model(text)
    assert expected in str(error.value)


def test_operators_are_fused_up_to_a_border(tmp_path: Path) -> None:
    source = parse_model(
        dedent(
            """
            model m opset 17 (x: 2x4)
              v = tensor(4x4)
              w = tensor(4x4)
              a: 2x4 = Gemm(x, v)
              b: 2x4 = Relu(a)
              c: 2x4 = Gemm(b, w)
              y: 2x4 = Relu(c)
            return y
            """
        )
    )
    path = lower(source, ["b", "c"], tmp_path)
    lowered, _ = import_lowered(path, Cache(tmp_path / "cache"), ["b", "c"], NCHWC, {})
    is_text(
        format_lowered(lowered),
        """
        lowered model opset 17 (x: 2x4)
          v = tensor(4x4)
          w = tensor(4x4)
          b: 2x4 = com.microsoft.FusedGemm(x, v) activation="Relu" alpha=1.0 beta=1.0 transA=0 transB=0
          c: 2x4 = Gemm(b, w) alpha=1.0 beta=1.0 transA=0 transB=0
          border:c: 2x4 = Identity(c)
          border:b: 2x4 = Identity(b)
          y: 2x4 = Relu(c)
        return border:c, border:b, y
        """,
    )


CHAIN = """
    model m opset 17 (x: 1x4x8x8)
      v = tensor(8x4x3x3)
      w = tensor(4x8x3x3)
      a: 1x8x8x8 = Conv(x, v) pads=[1, 1, 1, 1]
      b: 1x8x8x8 = Abs(a)
      y: 1x4x8x8 = Conv(b, w) pads=[1, 1, 1, 1]
    return y
    """
IN_BLOCKS = """
    lowered model opset 17 (x: 1x4x8x8)
      v = tensor(8x4x3x3)
      w = tensor(4x8x3x3)
      X: 1x4x8x8 = nchwc.ReorderInput(x) {in blocks of 4}
      A: 1x8x8x8 = nchwc.Conv(X, v) pads=[1, 1, 1, 1] {a in blocks of 4}
      B: 1x8x8x8 = Abs(A) {b in blocks of 4}
      Y: 1x4x8x8 = nchwc.Conv(B, w) pads=[1, 1, 1, 1] {in blocks of 4}
      y: 1x4x8x8 = nchwc.ReorderOutput(Y) channels=4
      a: 1x8x8x8 = nchwc.ReorderOutput(A) channels=8
      border:a: 1x8x8x8 = Identity(a)
      b: 1x8x8x8 = nchwc.ReorderOutput(B) channels=8
      border:b: 1x8x8x8 = Identity(b)
    return y, border:a, border:b
    """
HALF = """
    model m opset 17 (x: 1x4x8x8 float16)
      a: 1x4x8x8 float16 = Exp(x)
      y: 1x4x8x8 float16 = Neg(a)
    return y
    """
WIDENED = """
    lowered model opset 17 (x: 1x4x8x8 float16)
      X: 1x4x8x8 = Cast(x) to=1
      A: 1x4x8x8 = Exp(X) {a in float32}
      Y: 1x4x8x8 = Neg(A)
      y: 1x4x8x8 float16 = Cast(Y) name="Widened y" to=10
      a: 1x4x8x8 float16 = Cast(A) name="Widened a" to=10
      border:a: 1x4x8x8 float16 = Identity(a)
    return y, border:a
    """
QUANTISED = """
    model m opset 17 (x: 1x4x8x8 uint8)
      s = tensor(scalar, [0.5])
      z = tensor(scalar uint8, [0])
      w = tensor(8x4x1x1 uint8)
      a: 1x8x8x8 uint8 = QLinearConv(x, s, z, w, s, z, s, z)
      y: 1x8x7x7 uint8 = MaxPool(a) kernel_shape=[2, 2]
    return y
    """
LAST = """
    lowered model opset 17 (x: 1x4x8x8 uint8)
      s = tensor(scalar, [0.5])
      z = tensor(scalar uint8, [0])
      w = tensor(8x1x1x4 uint8)
      X: 1x8x8x4 uint8 = Transpose(x) perm=[0, 2, 3, 1]
      A: 1x8x8x8 uint8 = nhwc.QLinearConv(X, s, z, w, s, z, s, z) {a in NHWC}
      a: 1x8x8x8 uint8 = Transpose(A) perm=[0, 3, 1, 2]
      border:a: 1x8x8x8 uint8 = Identity(a)
      Y: 1x7x7x8 uint8 = nhwc.MaxPool(A) kernel_shape=[2, 2]
      y: 1x8x7x7 uint8 = Transpose(Y) perm=[0, 3, 1, 2]
    return border:a, y
    """
JOINED = """
    model m opset 17 (x: 1x4x8x8)
      v = tensor(2x4x1x1)
      w = tensor(2x4x1x1)
      a: 1x2x8x8 = Conv(x, v)
      b: 1x2x8x8 = Conv(x, w)
      c: 1x4x8x8 = Concat(a, b) axis=1
      y: 1x4x8x8 = Neg(c)
    return y
    """
WITH_GAPS = """
    lowered model opset 17 (x: 1x4x8x8)
      v = tensor(4x4x1x1)
      w = tensor(4x4x1x1)
      first = tensor(2 int64, [0, 1])
      all = tensor(4 int64, [0, 1, 4, 5])
      X: 1x4x8x8 = nchwc.ReorderInput(x) {in blocks of 4}
      A: 1x4x8x8 = nchwc.Conv(X, v) {a in blocks of 4}
      B: 1x4x8x8 = nchwc.Conv(X, w) {b in blocks of 4}
      C: 1x8x8x8 = Concat(A, B) axis=1 {c in blocks of 4}
      Y: 1x8x8x8 = Neg(C) {in blocks of 4}
      Y8: 1x8x8x8 = nchwc.ReorderOutput(Y) channels=8
      y: 1x4x8x8 = Gather(Y8, all) axis=1
      A4: 1x4x8x8 = nchwc.ReorderOutput(A) channels=4 {a with padded channels}
      border:a: 1x2x8x8 = Gather(A4, first) name="layout:a" axis=1
      B4: 1x4x8x8 = nchwc.ReorderOutput(B) channels=4 {b with padded channels}
      border:b: 1x2x8x8 = Gather(B4, first) name="layout:b" axis=1
      C8: 1x8x8x8 = nchwc.ReorderOutput(C) channels=8 {c with padded channels}
      border:c: 1x4x8x8 = Gather(C8, all) name="layout:c" axis=1
    return y, border:a, border:b, border:c
    """
POOLED = """
    model m opset 17 (x: 1x4x8x8)
      w = tensor(8x4x3x3)
      a: 1x8x8x8 = Conv(x, w) pads=[1, 1, 1, 1]
      b: 1x8x8x8 = Relu(a)
      y: 1x8x4x4 = MaxPool(b) kernel_shape=[2, 2] strides=[2, 2]
    return y
    """
FUSED = """
    lowered model opset 17 (x: 1x4x8x8)
      w = tensor(8x4x3x3)
      X: 1x4x8x8 = nchwc.ReorderInput(x) {in blocks of 4}
      B: 1x8x8x8 = nchwc.Conv(X, w) activation="Relu" pads=[1, 1, 1, 1] {b in blocks of 4}
      b: 1x8x8x8 = nchwc.ReorderOutput(B) channels=8
      border:b: 1x8x8x8 = Identity(b)
      Y: 1x8x4x4 = nchwc.MaxPool(B) kernel_shape=[2, 2] strides=[2, 2] {in blocks of 4}
      y: 1x8x4x4 = nchwc.ReorderOutput(Y) channels=8
    return border:b, y
    """


@pytest.mark.parametrize("text", [IN_BLOCKS, WIDENED, LAST, WITH_GAPS, FUSED])
def test_layouts_of_values_follow_from_the_nodes(text: str) -> None:
    bare = "\n".join(line.partition(" {")[0] for line in text.splitlines())
    is_text(relowered(bare, NCHWC), text)


BOTH, ONE = ("cpu:0", "cpu:1"), ("cpu:0",)
CUTS: dict[str, tuple[str, str, tuple[str, ...], dict[str, list[Part]], str]] = {
    "one segment has no borders inside": (
        CHAIN,
        IN_BLOCKS,
        ONE,
        {"cpu:0": ["a", "b", "y"]},
        """
        module segment_0 opset 17 (x: 1x4x8x8)
          v = tensor(8x4x3x3)
          w = tensor(4x8x3x3)
          X = nchwc.ReorderInput(x)
          A = nchwc.Conv(X, v) pads=[1, 1, 1, 1]
          B = Abs(A)
          Y = nchwc.Conv(B, w) pads=[1, 1, 1, 1]
          y: 1x4x8x8 = nchwc.ReorderOutput(Y) channels=4
        return y
        """,
    ),
    "equal engines hand over blocks": (
        CHAIN,
        IN_BLOCKS,
        BOTH,
        {"cpu:0": ["a"], "cpu:1": ["b", "y"]},
        """
        module segment_0 opset 17 (x: 1x4x8x8)
          v = tensor(8x4x3x3)
          X = nchwc.ReorderInput(x)
          "a in blocks of 4": 1x8x8x8 = nchwc.Conv(X, v) pads=[1, 1, 1, 1] {in blocks of 4}
        return "a in blocks of 4"
        module segment_1 opset 17 ("a in blocks of 4": 1x8x8x8 {in blocks of 4})
          w = tensor(4x8x3x3)
          B = Abs("a in blocks of 4")
          Y = nchwc.Conv(B, w) pads=[1, 1, 1, 1]
          y: 1x4x8x8 = nchwc.ReorderOutput(Y) channels=4
        return y
        """,
    ),
    "blocks end at an engine without blocks": (
        CHAIN,
        IN_BLOCKS,
        ONE,
        {"cpu:0": ["a"], "gpu:0": ["b", "y"]},
        """
        module segment_0 opset 17 (x: 1x4x8x8)
          v = tensor(8x4x3x3)
          X = nchwc.ReorderInput(x)
          A = nchwc.Conv(X, v) pads=[1, 1, 1, 1]
          a: 1x8x8x8 = nchwc.ReorderOutput(A) channels=8
        return a
        module segment_1 opset 17 (a: 1x8x8x8)
          w = tensor(4x8x3x3)
          b: 1x8x8x8 = Abs(a)
          y: 1x4x8x8 = Conv(b, w) pads=[1, 1, 1, 1]
        return y
        """,
    ),
    "a piece of rows has its halo and the padding of its own border": (
        CHAIN,
        IN_BLOCKS,
        BOTH,
        {"cpu:0": [("a", 2, 0, 4), "b", "y"], "cpu:1": [("a", 2, 4, 8)]},
        """
        module segment_0 opset 17 ("x[0:1, 0:4, 0:5, 0:8], for segment 0": 1x4x5x8)
          v = tensor(8x4x3x3)
          "X[0:1, 0:4, 0:5, 0:8]" = nchwc.ReorderInput("x[0:1, 0:4, 0:5, 0:8], for segment 0")
          "a[0:1, 0:8, 0:4, 0:8] in blocks of 4": 1x8x4x8 = nchwc.Conv("X[0:1, 0:4, 0:5, 0:8]", v) pads=[1, 1, 0, 1] {in blocks of 4}
        return "a[0:1, 0:8, 0:4, 0:8] in blocks of 4"
        module segment_1 opset 17 ("x[0:1, 0:4, 3:8, 0:8], for segment 1": 1x4x5x8)
          v = tensor(8x4x3x3)
          "X[0:1, 0:4, 3:8, 0:8]" = nchwc.ReorderInput("x[0:1, 0:4, 3:8, 0:8], for segment 1")
          "a[0:1, 0:8, 4:8, 0:8] in blocks of 4": 1x8x4x8 = nchwc.Conv("X[0:1, 0:4, 3:8, 0:8]", v) pads=[0, 1, 1, 1] {in blocks of 4}
        return "a[0:1, 0:8, 4:8, 0:8] in blocks of 4"
        module segment_2 opset 17 ("a in blocks of 4, for segment 2": 1x8x8x8 {in blocks of 4})
          w = tensor(4x8x3x3)
          B = Abs("a in blocks of 4, for segment 2")
          Y = nchwc.Conv(B, w) pads=[1, 1, 1, 1]
          y: 1x4x8x8 = nchwc.ReorderOutput(Y) channels=4
        return y
        """,
    ),
    "a piece of whole blocks of channels stays in blocks": (
        CHAIN,
        IN_BLOCKS,
        BOTH,
        {"cpu:0": [("a", 1, 0, 4), "b", "y"], "cpu:1": [("a", 1, 4, 8)]},
        """
        module segment_0 opset 17 (x: 1x4x8x8)
          "v[0:4, 0:4, 0:3, 0:3]" = tensor(4x4x3x3)
          "X[0:1, 0:4, 0:8, 0:8]" = nchwc.ReorderInput(x)
          "a[0:1, 0:4, 0:8, 0:8] in blocks of 4": 1x4x8x8 = nchwc.Conv("X[0:1, 0:4, 0:8, 0:8]", "v[0:4, 0:4, 0:3, 0:3]") pads=[1, 1, 1, 1] {in blocks of 4}
        return "a[0:1, 0:4, 0:8, 0:8] in blocks of 4"
        module segment_1 opset 17 (x: 1x4x8x8)
          "v[4:8, 0:4, 0:3, 0:3]" = tensor(4x4x3x3)
          "X[0:1, 0:4, 0:8, 0:8]" = nchwc.ReorderInput(x)
          "a[0:1, 4:8, 0:8, 0:8] in blocks of 4": 1x4x8x8 = nchwc.Conv("X[0:1, 0:4, 0:8, 0:8]", "v[4:8, 0:4, 0:3, 0:3]") pads=[1, 1, 1, 1] {in blocks of 4}
        return "a[0:1, 4:8, 0:8, 0:8] in blocks of 4"
        module segment_2 opset 17 ("a in blocks of 4, for segment 2": 1x8x8x8 {in blocks of 4})
          w = tensor(4x8x3x3)
          B = Abs("a in blocks of 4, for segment 2")
          Y = nchwc.Conv(B, w) pads=[1, 1, 1, 1]
          y: 1x4x8x8 = nchwc.ReorderOutput(Y) channels=4
        return y
        """,
    ),
    "a piece that ends inside of a block is computed by the model's own operator": (
        CHAIN,
        IN_BLOCKS,
        BOTH,
        {"cpu:0": [("a", 1, 0, 3), "b", "y"], "cpu:1": [("a", 1, 3, 8)]},
        """
        module segment_0 opset 17 (x: 1x4x8x8)
          "v as given[0:3, 0:4, 0:3, 0:3]" = tensor(3x4x3x3)
          "a[0:1, 0:3, 0:8, 0:8]": 1x3x8x8 = Conv(x, "v as given[0:3, 0:4, 0:3, 0:3]") pads=[1, 1, 1, 1]
        return "a[0:1, 0:3, 0:8, 0:8]"
        module segment_1 opset 17 (x: 1x4x8x8)
          "v as given[3:8, 0:4, 0:3, 0:3]" = tensor(5x4x3x3)
          "a[0:1, 3:8, 0:8, 0:8]": 1x5x8x8 = Conv(x, "v as given[3:8, 0:4, 0:3, 0:3]") pads=[1, 1, 1, 1]
        return "a[0:1, 3:8, 0:8, 0:8]"
        module segment_2 opset 17 ("a, for segment 2": 1x8x8x8)
          w = tensor(4x8x3x3)
          "a, for segment 2 #2" = nchwc.ReorderInput("a, for segment 2")
          B = Abs("a, for segment 2 #2")
          Y = nchwc.Conv(B, w) pads=[1, 1, 1, 1]
          y: 1x4x8x8 = nchwc.ReorderOutput(Y) channels=4
        return y
        """,
    ),
    "a fused task is cut as one": (
        POOLED,
        FUSED,
        BOTH,
        {"cpu:0": [("b", 2, 0, 4), ("y", 2, 0, 2)], "cpu:1": [("b", 2, 4, 8), ("y", 2, 2, 4)]},
        """
        module segment_0 opset 17 ("x[0:1, 0:4, 0:5, 0:8], for segment 0": 1x4x5x8)
          w = tensor(8x4x3x3)
          "X[0:1, 0:4, 0:5, 0:8]" = nchwc.ReorderInput("x[0:1, 0:4, 0:5, 0:8], for segment 0")
          "B[0:1, 0:8, 0:4, 0:8]" = nchwc.Conv("X[0:1, 0:4, 0:5, 0:8]", w) activation="Relu" pads=[1, 1, 0, 1]
          "Y[0:1, 0:8, 0:2, 0:4]" = nchwc.MaxPool("B[0:1, 0:8, 0:4, 0:8]") kernel_shape=[2, 2] pads=[0, 0, 0, 0] strides=[2, 2]
          "y[0:1, 0:8, 0:2, 0:4]": 1x8x2x4 = nchwc.ReorderOutput("Y[0:1, 0:8, 0:2, 0:4]") channels=8
        return "y[0:1, 0:8, 0:2, 0:4]"
        module segment_1 opset 17 ("x[0:1, 0:4, 3:8, 0:8], for segment 1": 1x4x5x8)
          w = tensor(8x4x3x3)
          "X[0:1, 0:4, 3:8, 0:8]" = nchwc.ReorderInput("x[0:1, 0:4, 3:8, 0:8], for segment 1")
          "B[0:1, 0:8, 4:8, 0:8]" = nchwc.Conv("X[0:1, 0:4, 3:8, 0:8]", w) activation="Relu" pads=[0, 1, 1, 1]
          "Y[0:1, 0:8, 2:4, 0:4]" = nchwc.MaxPool("B[0:1, 0:8, 4:8, 0:8]") kernel_shape=[2, 2] pads=[0, 0, 0, 0] strides=[2, 2]
          "y[0:1, 0:8, 2:4, 0:4]": 1x8x2x4 = nchwc.ReorderOutput("Y[0:1, 0:8, 2:4, 0:4]") channels=8
        return "y[0:1, 0:8, 2:4, 0:4]"
        """,
    ),
    "float32 crosses between engines that compute in it": (
        HALF,
        WIDENED,
        BOTH,
        {"cpu:0": ["a"], "cpu:1": ["y"]},
        """
        module segment_0 opset 17 (x: 1x4x8x8 float16)
          X = Cast(x) to=1
          "a in float32": 1x4x8x8 = Exp(X) {in float32}
        return "a in float32"
        module segment_1 opset 17 ("a in float32": 1x4x8x8 {in float32})
          Y = Neg("a in float32")
          y: 1x4x8x8 float16 = Cast(Y) to=10
        return y
        """,
    ),
    "another engine gets the model's type": (
        HALF,
        WIDENED,
        ONE,
        {"cpu:0": ["a"], "cpu:1": ["y"]},
        """
        module segment_0 opset 17 (x: 1x4x8x8 float16)
          X = Cast(x) to=1
          A = Exp(X)
          a: 1x4x8x8 float16 = Cast(A) to=10
        return a
        module segment_1 opset 17 (a: 1x4x8x8 float16)
          y: 1x4x8x8 float16 = Neg(a)
        return y
        """,
    ),
    "a whole tensor crosses in NHWC": (
        QUANTISED,
        LAST,
        BOTH,
        {"cpu:0": ["a"], "cpu:1": ["y"]},
        """
        module segment_0 opset 17 (x: 1x4x8x8 uint8)
          s = tensor(scalar, [0.5])
          z = tensor(scalar uint8, [0])
          w = tensor(8x1x1x4 uint8)
          X = Transpose(x) perm=[0, 2, 3, 1]
          "a in NHWC": 1x8x8x8 uint8 = nhwc.QLinearConv(X, s, z, w, s, z, s, z) {in NHWC}
        return "a in NHWC"
        module segment_1 opset 17 ("a in NHWC": 1x8x8x8 uint8 {in NHWC})
          Y = nhwc.MaxPool("a in NHWC") kernel_shape=[2, 2]
          y: 1x8x7x7 uint8 = Transpose(Y) perm=[0, 3, 1, 2]
        return y
        """,
    ),
    "parts of a tensor do not cross in NHWC": (
        QUANTISED,
        LAST,
        BOTH,
        {"cpu:0": ["a", ("y", 2, 0, 3)], "cpu:1": [("y", 2, 3, 7)]},
        """
        module segment_0 opset 17 (x: 1x4x8x8 uint8)
          s = tensor(scalar, [0.5])
          z = tensor(scalar uint8, [0])
          w = tensor(8x1x1x4 uint8)
          X = Transpose(x) perm=[0, 2, 3, 1]
          A = nhwc.QLinearConv(X, s, z, w, s, z, s, z)
          a: 1x8x8x8 uint8 = Transpose(A) perm=[0, 3, 1, 2]
        return a
        module segment_1 opset 17 ("a[0:1, 0:8, 0:4, 0:8], for segment 1": 1x8x4x8 uint8)
          "y[0:1, 0:8, 0:3, 0:7]": 1x8x3x7 uint8 = MaxPool("a[0:1, 0:8, 0:4, 0:8], for segment 1") kernel_shape=[2, 2] pads=[0, 0, 0, 0]
        return "y[0:1, 0:8, 0:3, 0:7]"
        module segment_2 opset 17 ("a[0:1, 0:8, 3:8, 0:8], for segment 2": 1x8x5x8 uint8)
          "y[0:1, 0:8, 3:7, 0:7]": 1x8x4x7 uint8 = MaxPool("a[0:1, 0:8, 3:8, 0:8], for segment 2") kernel_shape=[2, 2] pads=[0, 0, 0, 0]
        return "y[0:1, 0:8, 3:7, 0:7]"
        """,
    ),
    "gaps between channels cross within one lowered model": (
        JOINED,
        WITH_GAPS,
        BOTH,
        {"cpu:0": ["a", "b", "c"], "cpu:1": ["y"]},
        """
        module segment_0 opset 17 (x: 1x4x8x8)
          v = tensor(4x4x1x1)
          w = tensor(4x4x1x1)
          X = nchwc.ReorderInput(x)
          A = nchwc.Conv(X, v)
          B = nchwc.Conv(X, w)
          "c in blocks of 4": 1x8x8x8 = Concat(A, B) axis=1 {in blocks of 4}
        return "c in blocks of 4"
        module segment_1 opset 17 ("c in blocks of 4": 1x8x8x8 {in blocks of 4})
          all = tensor(4 int64, [0, 1, 4, 5])
          Y = Neg("c in blocks of 4")
          Y8 = nchwc.ReorderOutput(Y) channels=8
          y: 1x4x8x8 = Gather(Y8, all) axis=1
        return y
        """,
    ),
    "gaps between channels do not cross to another engine": (
        JOINED,
        WITH_GAPS,
        ONE,
        {"cpu:0": ["a", "b", "c"], "cpu:1": ["y"]},
        """
        module segment_0 opset 17 (x: 1x4x8x8)
          v = tensor(4x4x1x1)
          w = tensor(4x4x1x1)
          numbers = tensor(4 int64, [0, 1, 4, 5])
          X = nchwc.ReorderInput(x)
          A = nchwc.Conv(X, v)
          B = nchwc.Conv(X, w)
          C = Concat(A, B) axis=1
          "C #2" = nchwc.ReorderOutput(C) channels=8
          c: 1x4x8x8 = Gather("C #2", numbers) axis=1
        return c
        module segment_1 opset 17 (c: 1x4x8x8)
          y: 1x4x8x8 = Neg(c)
        return y
        """,
    ),
}


@pytest.mark.parametrize("name", CUTS)
def test_modules(name: str) -> None:
    text, lowered, devices, order, after = CUTS[name]
    is_text(modules(text, order, {devices: (lowered, NCHWC)}), after)


def test_blocks_inside_of_an_engine_are_left_at_no_cost() -> None:
    """It reads what ONNX Runtime hands over in equal blocks, and leaves them without a copy."""
    order: dict[str, list[Part]] = {"cpu:0": ["a"], "cpu:1": ["b", "y"]}
    lowered = {("cpu:0",): (IN_BLOCKS, NCHWC), ("cpu:1",): ("", INNER)}
    is_text(
        modules(CHAIN, order, lowered),
        """
        module segment_0 opset 17 (x: 1x4x8x8)
          v = tensor(8x4x3x3)
          X = nchwc.ReorderInput(x)
          "a in blocks of 4": 1x8x8x8 = nchwc.Conv(X, v) pads=[1, 1, 1, 1] {in blocks of 4}
        return "a in blocks of 4"
        module segment_1 opset 17 ("a in blocks of 4": 1x8x8x8 {in blocks of 4})
          w = tensor(4x8x3x3)
          "a in blocks of 4 #2": 1x8x8x8 = inner.LeaveBlocks("a in blocks of 4") channels=8
          b: 1x8x8x8 = Abs("a in blocks of 4 #2")
          y: 1x4x8x8 = Conv(b, w) pads=[1, 1, 1, 1]
        return y
        """,
    )


def test_a_module_is_read_from_its_text() -> None:
    text = dedent(CUTS["float32 crosses between engines that compute in it"][-1]).strip()
    for part in text.split("module")[1:]:
        assert format_module(parse_module(f"module{part}".strip())) == f"module{part}".strip()
