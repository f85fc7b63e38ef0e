"""How well latency predictors know tasks that they have not seen.

Made-up networks are measured task by task on each device (what the cache holds is not measured
again), unit times are learnt from 70 % of the tasks, and the rest is predicted: ten times, with
others drawn each time, as a single draw says it to within 3 %. Printed is the share of all ten.
Beside it: seconds in proportion to multiply-accumulates, learnt in the same way for each kind of
kernel, and how far the same tasks are from themselves when they are measured twice. Goal: 84 % of
convolutions within 10 %; at most 500 bytes a kind and 0.5 ms a prediction.

    python benchmarks/predictor.py --devices cpu:0,cpu:1/opencl --cache FOLDER
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
from coexec.costs.base import Unmeasured, Workload
from coexec.costs.predictor import LatencyPredictor, TrainedUnits, to_json, train
from coexec.engines.names import split_names
from coexec.engines.opened import OpenDevice
from coexec.engines.registry import open_devices
from coexec.profiling.store import ProfileStore
from coexec.profiling.training import TrainingSample, collect

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
        show(f"{device.first.place}: {len(samples)} tasks", rows, args.json)
        device.close()


def table(device: OpenDevice, samples: Samples, again: Mapping[str, float]) -> list[dict[str, Any]]:
    draws = [Draw.of(samples, number) for number in range(DRAWS)]
    first = draws[0]
    sizes = {kind: len(text) for kind, text in to_json(first.kinds).items()}
    slower = float(np.median([again[key(s)] / s.seconds for s in samples if key(s) in again]))
    """What the device as a whole has become slower between the two measurements."""
    rows = []
    for name, chosen in groups(samples, first.kinds).items():
        tested = [draw.tested(chosen) for draw in draws]
        predicted = [errors(t, d.kinds, workload_of) for t, d in zip(tested, draws, strict=True)]
        flops = [errors(t, d.by_macs, macs_only) for t, d in zip(tested, draws, strict=True)]
        shares = [near(one) for one in predicted if one]
        repeated = [again[key(s)] / s.seconds / slower - 1 for s in chosen if key(s) in again]
        rows.append({
            "kernel": name,
            "tasks": len(chosen),
            "within 10 %": percent(near(pooled(predicted))),
            "of a draw": f"{percent(min(shares))} to {percent(max(shares))}",
            "median error": float(np.median(np.abs(pooled(predicted)))),
            "FLOPs only": percent(near(pooled(flops))),
            "measured twice": percent(near(repeated)) if repeated else "",
            "bytes": max(sizes.values()) if name not in sizes else sizes[name],
            "predict_s": prediction_s(chosen, LatencyPredictor(first.kinds, device.first.workload)),
        })  # fmt: skip
    return rows


@dataclass(frozen=True)
class Draw:
    """Unit times that were learnt from some of the samples."""

    kinds: TrainedUnits
    by_macs: TrainedUnits
    taught: frozenset[str]
    """`key` of each sample that they were learnt from."""

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
    """All convolutions, then each kind that there is enough of to learn."""
    known = [s for s in samples if s.workload.kind in kinds]
    found = {"all convolutions": [s for s in known if is_convolution(s)]}
    for kind in kinds:
        found[kind] = [s for s in known if s.workload.kind == kind]
    return {name: chosen for name, chosen in found.items() if chosen}


def is_convolution(sample: TrainingSample) -> bool:
    return any(op.op_type == "Conv" for op in sample.task.operators)


def workload_of(sample: TrainingSample) -> Workload:
    return sample.workload


def macs_only(sample: TrainingSample) -> Workload:
    return Workload(sample.workload.kind, {"macs": float(max(1, sample.task.macs))})


def errors(
    samples: Samples, kinds: TrainedUnits, describe: Callable[[TrainingSample], Workload]
) -> list[float]:
    """Relative ones; of what cannot be predicted, infinite."""
    found = []
    for sample in samples:
        workload = describe(sample)
        said = kinds[workload.kind].seconds(workload) if workload.kind in kinds else None
        found.append(np.inf if said is None else said / sample.seconds - 1.0)
    return found


def pooled(draws: Sequence[Sequence[float]]) -> list[float]:
    return [error for draw in draws for error in draw]


def near(errors: Sequence[float]) -> float:
    """The share that is within 10 %."""
    return float(np.mean(np.abs(errors) <= NEAR))


def percent(share: float) -> str:
    return f"{share:.1%}"


def prediction_s(samples: Samples, predictor: LatencyPredictor) -> float:
    """Seconds of a prediction, features and all."""
    tasks = [Unmeasured(s.graph, s.task, s.compiled, "", 0.0, ()) for s in samples]
    started_s = time.perf_counter()
    for task in tasks:
        predictor(task)
    return (time.perf_counter() - started_s) / len(tasks)


def measured_again(device: OpenDevice, samples: Samples) -> dict[str, float]:
    """The seconds of some of the tasks from another run of the same networks."""
    with tempfile.TemporaryDirectory() as folder, ProfileStore(Path(folder)) as store:
        return {key(s): s.seconds for s in collect(device, store, round(REPEATED * len(samples)))}


def key(sample: TrainingSample) -> str:
    return f"{sample.task.signature} {sample.compiled}"


if __name__ == "__main__":
    main()
