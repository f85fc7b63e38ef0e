"""Well-known architectures with deterministic random weights, for tests, examples and benchmarks.

    from coexec.research.zoo import MODELS, build
    model = build("squeezenet")        # onnx_ir.Model, batch 1, float32

To add a model: one file with a `build()` function, one row in `MODELS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import onnx_ir as ir

from coexec.errors import ModelError
from coexec.research.zoo import (
    deeplab_v3,
    inception_v3,
    inception_v4,
    lstm,
    mobilenet_v1,
    mobilenet_v2,
    mobilenet_v3,
    nasnet_large,
    pnasnet_large,
    pnasnet_mobile,
    posenet,
    resnet34,
    retinaface,
    squeezenet,
    style_transfer,
    vgg16,
    yolov2,
)

MODELS: Mapping[str, Callable[[], ir.Model]] = MappingProxyType(
    {
        "deeplab_v3": deeplab_v3.build,
        "inception_v3": inception_v3.build,
        "inception_v4": inception_v4.build,
        "lstm": lstm.build,
        "mobilenet_v1": mobilenet_v1.build,
        "mobilenet_v2": mobilenet_v2.build,
        "mobilenet_v3": mobilenet_v3.build,
        "nasnet_large": nasnet_large.build,
        "pnasnet_large": pnasnet_large.build,
        "pnasnet_mobile": pnasnet_mobile.build,
        "posenet": posenet.build,
        "resnet34": resnet34.build,
        "retinaface": retinaface.build,
        "squeezenet": squeezenet.build,
        "style_transfer": style_transfer.build,
        "vgg16": vgg16.build,
        "yolov2": yolov2.build,
    }
)
"""Name -> builder, sorted by name."""


def build(name: str) -> ir.Model:
    """The model of that name: input "x", batch 1, float32, the same weights in every process.

    Building is instant: weights are made when they are first read, and then kept.

    Raises ModelError, naming the models there are, for an unknown name.
    """
    if name not in MODELS:
        raise ModelError(f"the zoo has no model {name!r}; it has {', '.join(MODELS)}")
    return MODELS[name]()
