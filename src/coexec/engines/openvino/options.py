"""Options of OpenVINO as an engine."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from coexec.precision import Precision

PRECISIONS: Mapping[Precision, str] = {"float32": "f32", "bf16": "bf16", "fp16": "f16"}
"""OpenVINO's names of the precisions in which it computes."""
CAPABILITIES: Mapping[Precision, str] = {"float32": "FP32", "bf16": "BF16", "fp16": "FP16"}
"""Its names of them in the list of what a processor can."""


@dataclass(frozen=True, slots=True)
class OpenVinoOptions:
    """Options of the engine."""

    precision: Literal["float32", "bf16", "fp16"] = "float32"
    """Precision in which it computes. Tensors between segments keep their types."""
