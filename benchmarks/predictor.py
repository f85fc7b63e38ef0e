"""Accuracy of latency predictors for tasks that they were not trained with.

Random networks are measured task by task on each device (tasks in the cache are not measured
again). Unit times are learnt from 70 % of the tasks, and the other tasks are predicted. This is
repeated ten times with different draws, because the result of a single draw has an error of 3 %.
The program prints the share over all ten draws. For comparison it also prints the share for a model
with seconds in proportion to multiply-accumulates, learnt in the same way for each kind of kernel,
and for a second measurement of the same tasks. Goal: 84 % of convolutions within 10 %; at most 500
bytes per kind and 0.5 ms per prediction.

    python benchmarks/predictor.py --devices cpu:0,cpu:1/cpp --cache FOLDER
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import show

from coexec.cache import Cache
from coexec.costs.base import Unmeasured
from coexec.engines.names import split_names
from coexec.engines.opened import OpenDevice
from coexec.engines.registry import open_devices
from coexec.profiling.store import ProfileStore
from coexec.research.predictor.latency import (
    LatencyPredictor,
    TrainedUnits,
    describe,
    to_json,
    train,
)
from coexec.research.predictor.training import TrainingSample, collect
from coexec.research.predictor.workloads import Workload

NEAR = 0.10
TAUGHT = 0.7
DRAWS = 10
REPEATED = 0.2
"""Share of the tasks that are measured a second time."""

Samples = Sequence[TrainingSample]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--devices", default="cpu:0", help="as in coexec profile")
    parser.add_argument("--samples", type=int, default=3000, help="tasks of each device")
    parser.add_argument("--cache", default=None, help="folder with what was measured before")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    args = parser.parse_args()
    root = Cache(args.cache).root
    for device in open_devices(split_names(args.devices), {}, root):
        with ProfileStore(root) as store:
            samples = collect(device, store, args.samples)
        again = measured_again(device, samples)
        rows = table(device, samples, again)
        show(f"{device.engine.place}: {len(samples)} tasks", rows, args.json)
        device.close()


def table(device: OpenDevice, samples: Samples, again: Mapping[str, float]) -> list[dict[str, Any]]:
    draws = [Draw.of(samples, number) for number in range(DRAWS)]
    first = draws[0]
    sizes = {kind: len(text) for kind, text in to_json(first.kinds).items()}
    slower = float(np.median([again[key(s)] / s.seconds for s in samples if key(s) in again]))
    """The factor by which the whole device has become slower between the two measurements."""
    rows = []
    for name, chosen in groups(samples, first.kinds).items():
        tested = [draw.tested(chosen) for draw in draws]
        predicted = [errors(t, d.kinds, workload_of) for t, d in zip(tested, draws, strict=True)]
        flops = [errors(t, d.by_macs, macs_only) for t, d in zip(tested, draws, strict=True)]
        shares = [near(one) for one in predicted if one]
        repeated = [again[key(s)] / s.seconds / slower - 1 for s in chosen if key(s) in again]
        rows.append(
            {
                "kernel": name,
                "tasks": len(chosen),
                "within 10 %": percent(near(pooled(predicted))),
                "of a draw": f"{percent(min(shares))} to {percent(max(shares))}",
                "median error": float(np.median(np.abs(pooled(predicted)))),
                "FLOPs only": percent(near(pooled(flops))),
                "measured twice": percent(near(repeated)) if repeated else "",
                "bytes": max(sizes.values()) if name not in sizes else sizes[name],
                "predict_s": prediction_s(
                    chosen, LatencyPredictor(first.kinds, describe(device.engine))
                ),
            }
        )
    return rows


@dataclass(frozen=True)
class Draw:
    """Unit times that were learnt from a random part of the samples."""

    kinds: TrainedUnits
    by_macs: TrainedUnits
    taught: frozenset[str]
    """`key` of each training sample."""

    @classmethod
    def of(cls, samples: Samples, number: int) -> "Draw":
        order = np.random.default_rng(number).permutation(len(samples))
        taught = [samples[i] for i in order[: round(TAUGHT * len(samples))]]
        return cls(
            train((s.workload, s.seconds) for s in taught),
            train((macs_only(s), s.seconds) for s in taught),
            frozenset(map(key, taught)),
        )

    def tested(self, samples: Samples) -> list[TrainingSample]:
        return [s for s in samples if key(s) not in self.taught]


def groups(samples: Samples, kinds: TrainedUnits) -> dict[str, list[TrainingSample]]:
    """Samples by group: all convolutions, then each kind with enough samples to learn from."""
    usable_samples = [s for s in samples if s.workload.kind in kinds]
    samples_of = {"all convolutions": [s for s in usable_samples if is_convolution(s)]}
    for kind in kinds:
        samples_of[kind] = [s for s in usable_samples if s.workload.kind == kind]
    return {name: chosen for name, chosen in samples_of.items() if chosen}


def is_convolution(sample: TrainingSample) -> bool:
    return any(op.op_type == "Conv" for op in sample.task.operators)


def workload_of(sample: TrainingSample) -> Workload:
    return sample.workload


def macs_only(sample: TrainingSample) -> Workload:
    return Workload(sample.workload.kind, {"macs": float(max(1, sample.task.macs))})


def errors(
    samples: Samples, kinds: TrainedUnits, describe: Callable[[TrainingSample], Workload]
) -> list[float]:
    """Relative errors; infinite for samples that cannot be predicted."""
    relative_errors = []
    for sample in samples:
        workload = describe(sample)
        predicted_s = kinds[workload.kind].seconds(workload) if workload.kind in kinds else None
        relative_errors.append(
            np.inf if predicted_s is None else predicted_s / sample.seconds - 1.0
        )
    return relative_errors


def pooled(draws: Sequence[Sequence[float]]) -> list[float]:
    return [error for draw in draws for error in draw]


def near(errors: Sequence[float]) -> float:
    """The share of errors within 10 %."""
    return float(np.mean(np.abs(errors) <= NEAR))


def percent(share: float) -> str:
    return f"{share:.1%}"


def prediction_s(samples: Samples, predictor: LatencyPredictor) -> float:
    """Seconds of one prediction, including the computation of features."""
    tasks = [Unmeasured(s.graph, s.task, s.compiled, "", 0.0, ()) for s in samples]
    started_s = time.perf_counter()
    for task in tasks:
        predictor(task)
    return (time.perf_counter() - started_s) / len(tasks)


def measured_again(device: OpenDevice, samples: Samples) -> dict[str, float]:
    """The seconds of some of the tasks, from a second run of the same networks."""
    with tempfile.TemporaryDirectory() as folder, ProfileStore(Path(folder)) as store:
        return {key(s): s.seconds for s in collect(device, store, round(REPEATED * len(samples)))}


def key(sample: TrainingSample) -> str:
    return f"{sample.task.signature} {sample.compiled}"


if __name__ == "__main__":
    main()
