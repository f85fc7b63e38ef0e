"""ONNX Runtime's own operators, as its optimizer writes them."""

import tempfile
from functools import cache
from pathlib import Path

from coexec.engines.onnxruntime.alignment import block_of
from coexec.lowering.dialect import Dialect

_BLOCKED = "com.microsoft.nchwc"
_FUSED = "com.microsoft"
_ENTER, _LEAVE = (_BLOCKED, "ReorderInput"), (_BLOCKED, "ReorderOutput")


@cache
def dialect() -> Dialect:
    """ONNX Runtime's dialect on this processor, whose vector registers determine the block size."""
    with tempfile.TemporaryDirectory() as folder:
        block = block_of(Path(folder))
    blocked = {(_BLOCKED, name): name for name in ("AveragePool", "Conv", "MaxPool")}
    return Dialect(
        layout_ops=frozenset({("", "Identity"), _ENTER, _LEAVE}),
        like={**blocked, (_FUSED, "FusedConv"): "Conv", (_FUSED, "FusedGemm"): "Gemm"},
        block=block if block > 1 else 0,
        domain=_BLOCKED,
        enter=_ENTER,
        leave=_LEAVE,
        widened="InsertedPrecisionFreeCast_",
    )
