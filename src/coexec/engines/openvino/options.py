"""Options of OpenVINO as an engine."""

from dataclasses import dataclass
from typing import Literal

PRECISIONS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
"""OpenVINO's names of the precisions in which it computes."""


@dataclass(frozen=True, slots=True)
class OpenVinoOptions:
    """Options of the engine."""

    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision in which it computes. Tensors between segments keep their types."""
