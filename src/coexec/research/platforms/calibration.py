"""Compare published latencies with the model's, for each figure in a platform file."""

import math
import re
from dataclasses import dataclass
from typing import Any

from coexec.errors import UsageError
from coexec.graph.graph import Operator, Tensor
from coexec.research.platforms.costs import Rates, operator_s
from coexec.research.platforms.files import fitted_rates, read

_OPERATOR = re.compile(r"(\w+) (\d+)x(\d+)/(\d) (\d+)>(\d+) (\d+)x(\d+)")
_POOL = {"Pool": "AveragePool"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One published latency of one processor, or of one link."""

    device: str
    """A device, or a link such as "cpu:0 -> gpu:0"."""
    what: str
    published_s: float
    model_s: float

    @property
    def ratio(self) -> float:
        return self.model_s / self.published_s


def compare_operators(name: str) -> list[Comparison]:
    """Comparison of each published operator of platform ``name``, alone on one processor."""
    data = read(name)
    rates = fitted_rates(data)
    table = data["operators"]
    return [
        Comparison(device, what, us * 1e-6, described_s(what, rates[device]))
        for what, *columns in table["us"]
        for device, us in zip(table["devices"], columns, strict=True)
        if not math.isnan(us)
    ]


def compare_transfers(name: str) -> list[Comparison]:
    """Comparison of each published transfer of platform ``name`` between two memories."""
    data = read(name)
    comparisons = []
    for link, column in zip(data["transfers"]["links"], (1, 2), strict=True):
        figures = next(x for x in data["link"] if [x["source"], x["target"]] == link)
        setup_s = figures["setup_s"]["value"]
        bytes_per_s = figures["bandwidth_bytes_per_s"]["value"]
        for row in data["transfers"]["us"]:
            model_s = setup_s + 4 * row[0] / bytes_per_s
            what = f"{row[0]} elements"
            comparisons.append(Comparison(" -> ".join(link), what, row[column] * 1e-6, model_s))
    return comparisons


def described_s(text: str, rates: Rates) -> float:
    """Seconds of the operator that ``text`` describes."""
    return operator_s(*described_operator(text), rates)


def described_operator(text: str) -> tuple[Operator, dict[str, Tensor]]:
    """An operator and its tensors from "Conv 7x1/1 128>192 17x17": kernel, stride, channels in and
    out, size of the output. "Concat 4x1/1 42>168 83x83" joins four parts of 42 channels; "MatMul
    1x1/1 1536>1001 1x1" is a vector times a matrix.
    """
    match = _OPERATOR.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text!r} does not describe an operator; write for example 'Conv 7x1/1 128>192 17x17'"
        )
    kind = match[1]
    kh, kw, stride, channels_in, channels, height, width = map(int, match.groups()[1:])
    source = (1, channels_in, height * stride, width * stride)
    tensors = {"x": Tensor("x", source, "float32")}
    tensors["y"] = Tensor("y", (1, channels, height, width), "float32")
    attributes: dict[str, Any] = {"kernel_shape": (kh, kw), "strides": (stride, stride)}
    inputs: tuple[str, ...] = ("x",)
    if kind in ("Conv", "Depthwise"):
        group = channels_in if kind == "Depthwise" else 1
        weight = (channels, channels_in // group, kh, kw)
        tensors["w"] = Tensor("w", weight, "float32", constant=True)
        attributes["group"] = group
        inputs, kind = ("x", "w"), "Conv"
    elif kind == "MatMul":
        tensors["w"] = Tensor("w", (channels_in, channels), "float32", constant=True)
        inputs = ("x", "w")
    elif kind in ("Add", "Concat"):
        inputs = ("x",) * (2 if kind == "Add" else kh)
    return Operator(_POOL.get(kind, kind), inputs, ("y",), attributes, {}), tensors
