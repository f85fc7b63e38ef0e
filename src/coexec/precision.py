"""Precisions in which engines compute."""

from typing import Literal, get_args

Precision = Literal["float32", "tf32", "bf16", "fp16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
FLOAT32: Precision = "float32"


def allowed(least: Precision) -> tuple[Precision, ...]:
    """The precisions that a plan may use whose least precise one is ``least``.

    TF32 has the range of bf16 and the digits of fp16, so either of the two allows it. They do not
    allow each other: bf16 has fewer digits, and fp16 the smaller range.
    """
    return (FLOAT32,) if least == FLOAT32 else tuple(dict.fromkeys((FLOAT32, "tf32", least)))
