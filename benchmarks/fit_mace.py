"""Fit the rates of the phones that MACE was measured on to whole networks on one processor.

Few figures were published for each processor: four whole networks, each of which is a sum over its
operators, and on one phone a few single convolutions. Therefore few rates are free, the others are
tied to these (`tied`), and free rates have prior values. The fit minimises

    sum over figures of (log(model / published) / 0.05)^2
    + sum over free rates of (log(rate / expected) / spread)^2

The expected rates of the first phone are `EXPECTED`, from the processors' data sheets and the
single convolutions. Those of the other phones are the fitted rates of the first phone, with a
smaller spread, because all phones run the same kernels. style_transfer is compared but not fitted:
the CPU needs twice as long for each of its multiply-accumulates as for those of the other networks,
and only style_transfer has 9x9 filters, transposed convolutions and instance normalisation, so it
is unknown which of these is slow.

    python benchmarks/fit_mace.py snapdragon_855              # rates as they stand in the file
    python benchmarks/fit_mace.py --quality snapdragon_855    # model against published

"left out" is the model's time with rates that were fitted without this figure.
"""

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from common import show

from coexec.graph.graph import Graph
from coexec.hardware.hardware import Place
from coexec.research.platforms.calibration import described_operator
from coexec.research.platforms.costs import PlatformCosts, Rates, operator_s
from coexec.research.platforms.files import figure, fitted_rates, read
from coexec.selection.planning_context import PlanningContext

FIRST = "snapdragon_855"
PHONES = (FIRST, "snapdragon_865", "snapdragon_888")
CPU, IMAGE, BUFFER = "cpu:4-7", "gpu:0/image", "gpu:0/buffer"
PRECISION = 0.05
"""Error of a published figure, as a logarithm: figures are rounded, and are means of 50 runs."""
SPREADS = {True: 0.5, False: 0.2}
"""Deviation of a rate from its expected value, as a logarithm: on the first phone, on others."""
ROUNDS = 60

FREE = (
    "conv_macs_per_s",
    "winograd_macs_per_s",
    "pointwise_macs_per_s",
    "copy_bytes_per_s",
    "conv_weight_bytes_per_s",
    "operator_s",
)
EXPECTED = {
    # Peak: (2.84 + 3 * 2.42) GHz * 8 multiply-accumulates = 81e9 a second. The published 1x1
    # convolution runs at 59e9, direct convolutions at about half of the peak; Winograd's algorithm
    # on tiles of 4x4 saves three quarters of the work of 3x3 filters and pays for its transforms.
    CPU: Rates(40e9, 90e9, 59e9, 1e10, 1e10, 2.5e9, 1e10, 1e10, 1e10, 1e10, 3e-5,
               conv_weight_bytes_per_s=4e9, largest_winograd=3),
    # The published convolutions: 3x3 at up to 112e9, 1x1 at 79e9; the general kernel reads each
    # input once for each position of the filter.
    IMAGE: Rates(60e9, 115e9, 80e9, 1e10, 1e10, 2.5e9, 1e10, 1e10, 1e10, 1e10, 1e-4, 1000.0,
                 conv_weight_bytes_per_s=1e10, largest_winograd=3),
}  # fmt: skip


@dataclass(frozen=True)
class Published:
    """The published figure of a network or an operator on one processor."""

    what: str
    device: str
    seconds: float
    model_s: Callable[[Rates], float]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("platform", choices=PHONES)
    parser.add_argument("--quality", action="store_true", help="errors instead of rates")
    parser.add_argument("--json", action="store_true", help="errors as JSON")
    options = parser.parse_args()
    if options.quality:
        title = f"{options.platform}: model against published"
        show(title, quality(options.platform), options.json)
    else:
        print_rates(options.platform)


def print_rates(name: str) -> None:
    stated = fitted_rates(read(name))
    for device in (CPU, IMAGE, BUFFER):
        print(device)
        for key, value in _given(fit(name, device)).items():
            print(f"  {key:30} {value:9.3g}   the file says {getattr(stated[device], key):.3g}")


def quality(name: str) -> list[dict[str, Any]]:
    """A row for each figure, with the rates of the file."""
    data, table = read(name), []
    stated = fitted_rates(data)
    fitted, checked = published(name, "fitted"), published(name, "check")
    for own in (*fitted, *checked):
        model_s = own.model_s(stated[own.device])
        row = {
            "what": own.what,
            "where": own.device,
            "published": f"{own.seconds * 1e3:.1f} ms",
            "model": f"{model_s * 1e3:.1f} ms",
            "error": f"{model_s / own.seconds - 1:+.0%}",
            "left out": "",
        }
        if own in fitted and own.device != BUFFER:
            without = own.model_s(fit(name, own.device, without=own.what))
            row["left out"] = f"{without / own.seconds - 1:+.0%}"
        table.append(row)
    return table


@cache
def published(name: str, key: str) -> tuple[Published, ...]:
    """The networks in the tables ``key`` of a platform file; for the fitted networks also the
    single operators."""
    data = read(name)
    figures = []
    for row in data[key]:
        alone_s = partial(network_s, row["model"])
        figures.append(Published(row["model"], row["device"], figure(row, "published_s"), alone_s))
    if key == "fitted" and "operators" in data:
        for what, *columns in data["operators"]["us"]:
            alone_s = partial(operator_s, *described_operator(what))
            for device, us in zip(data["operators"]["devices"], columns, strict=True):
                if not math.isnan(us):
                    figures.append(Published(what, device, us * 1e-6, alone_s))
    return tuple(figures)


@cache
def graph_of(model: str) -> Graph:
    return PlanningContext(f"zoo:{model}").user_model.published_graph


def network_s(model: str, rates: Rates) -> float:
    """Seconds of a network whose tasks run one after the other."""
    graph, place = graph_of(model), Place("", "")
    cost = PlatformCosts({place: rates}, {})
    wholes = ((task, graph.output_of(task).whole) for task in graph.tasks)
    return math.fsum(cost.piece_s(graph, task, whole, place) for task, whole in wholes)


@cache
def fit(name: str, device: str, without: str = "") -> Rates:
    """The fitted rates of one processor; the figure ``without`` is left out."""
    if device == BUFFER:
        return buffered(name)
    expected = EXPECTED[device] if name == FIRST else fit(FIRST, device)
    rows = [r for r in published(name, "fitted") if (r.device == device) and r.what != without]
    free = (*FREE, "half_items") if expected.half_items else FREE
    error = partial(loss, rows, expected, free, SPREADS[name == FIRST])
    return descended(tied(expected), free, error)


def buffered(name: str) -> Rates:
    """The rates of the GPU with buffers: all convolutions are slower by the factor of 3x3
    convolutions on the first phone.

    Adreno's advantage with images is the texture cache for the inputs of convolutions.
    """
    own = [row for row in published(FIRST, "fitted") if row.device == BUFFER]
    image = fit(FIRST, IMAGE)
    factor = math.exp(
        math.fsum(math.log(row.seconds / row.model_s(image)) for row in own) / len(own)
    )
    rates = fit(name, IMAGE)
    slower = {k: v / factor for k, v in _given(rates).items() if k.endswith("_macs_per_s")}
    return replace(rates, **slower)


def tied(rates: Rates) -> Rates:
    """All rates, where tied rates follow from the free ones.

    Weights of fully connected layers are streamed like all other data; a pool reads each element of
    four bytes. No network has depthwise convolutions or unaligned concatenations. Their ratios to
    1x1 convolutions and copies are those of kirin_990, a Cortex-A76 and a Mali.
    """
    kirin = fitted_rates(read("kirin_990"))["gpu:0" if rates.half_items else "cpu:6-7"]
    pointwise = rates.pointwise_macs_per_s / kirin.pointwise_macs_per_s
    copy = rates.copy_bytes_per_s
    return replace(
        rates,
        depthwise_macs_per_s=kirin.depthwise_macs_per_s * pointwise,
        strided_depthwise_macs_per_s=kirin.strided_depthwise_macs_per_s * pointwise,
        pool_elements_per_s=copy / 4,
        unaligned_concat_bytes_per_s=copy
        * kirin.unaligned_concat_bytes_per_s
        / kirin.copy_bytes_per_s,
        vector_conv_bytes_per_s=copy,
        matmul_bytes_per_s=copy,
    )


def loss(
    rows: Sequence[Published], expected: Rates, free: Sequence[str], spread: float, rates: Rates
) -> float:
    misses = [math.log(row.model_s(rates) / row.seconds) / PRECISION for row in rows]
    drawn = [math.log(getattr(rates, k) / getattr(expected, k)) / spread for k in free]
    return math.fsum(x * x for x in (*misses, *drawn))


def descended(rates: Rates, free: Sequence[str], error: Callable[[Rates], float]) -> Rates:
    """Coordinate descent: multiply one rate after the other by a factor; a factor that does not
    reduce the error shrinks."""
    factors = dict.fromkeys(free, 1.5)
    best = error(rates)
    for _ in range(ROUNDS):
        for name in free:
            for factor in (factors[name], 1 / factors[name]):
                tried = tied(replace(rates, **{name: getattr(rates, name) * factor}))
                if (tried_error := error(tried)) < best:
                    best, rates = tried_error, tried
                    break
            else:
                factors[name] = math.sqrt(factors[name])
    return rates


def _given(rates: Rates) -> Mapping[str, float]:
    """The rates by name that are in a platform file: those that are positive and finite."""
    all_rates = {key: float(getattr(rates, key)) for key in Rates.__dataclass_fields__}
    return {key: value for key, value in all_rates.items() if 0 < value < math.inf}


if __name__ == "__main__":
    main()
