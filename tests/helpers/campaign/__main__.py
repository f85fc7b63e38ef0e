"""Random operators and graphs on an engine, beside ONNX Runtime.

``python -m tests.helpers.campaign``, in the root of the repository. Equal seeds and counts give
equal cases on every machine. Cases run in separate processes: a process that dies or hangs is
counted, and the others continue. ``--only 17`` runs one case and prints its inputs. Plans that a
session withdraws because their outputs differ from ONNX Runtime's are printed, too.

The exit code is 1 unless every case is right or refused with a reason.
"""

import argparse
import json
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from tests.helpers.campaign.graphs import Network, network
from tests.helpers.campaign.judging import SETTINGS, Verdict, verdicts
from tests.helpers.campaign.operators import probe
from tests.helpers.campaign.planning import of_graphs
from tests.helpers.campaign.probe import Probe
from tests.helpers.campaign.workers import judged

_GOOD = ("right", "refused")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="campaign", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engine", choices=SETTINGS, default="cpp")
    parser.add_argument("--count", type=int, default=5000, help="of random operators")
    parser.add_argument(
        "--graphs",
        type=int,
        default=0,
        metavar="COUNT",
        help="random graphs through the default session, in place of operators",
    )
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--batch", type=int, default=20, help="operators in one model")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one model")
    parser.add_argument(
        "--seconds",
        type=float,
        default=threading.TIMEOUT_MAX,
        help="end after so long, and tell what was found until then",
    )
    parser.add_argument("--only", type=int, help="run this case alone, with its inputs printed")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    args = _arguments()
    if args.worker is not None:
        _work(args)
        return
    if args.only is not None:
        _show(args)
        return
    indices = range(args.first, args.first + (args.graphs or args.count))
    words = ["--engine", args.engine, "--seed", str(args.seed), "--graphs", str(args.graphs)]
    results = []
    batch = 1 if args.graphs else args.batch
    for verdict in judged(words, indices, args.jobs, batch, args.timeout, args.seconds):
        results.append(verdict)
        if verdict.outcome not in _GOOD or verdict.why.startswith("degraded"):
            what = verdict.what or str(_case(args, verdict.index))
            print(f"{verdict.outcome} {verdict.index}: {what}: {verdict.why}", flush=True)
    _summary(results)
    sys.exit(any(v.outcome not in _GOOD for v in results))


def _work(args: argparse.Namespace) -> None:
    """The worker process: prints a line of JSON for each model that begins and each verdict."""
    numbers, _, batch = args.worker.partition("/")
    indices = [int(number) for number in numbers.split(",")]
    for message in _judge(args, indices, int(batch)):
        line = message if isinstance(message, list) else asdict(message)
        print(json.dumps(line), flush=True)


def _case(args: argparse.Namespace, index: int) -> Probe | Network:
    return network(args.seed, index) if args.graphs else probe(args.seed, index)


def _judge(args: argparse.Namespace, indices: Sequence[int], batch: int) -> Iterator[Any]:
    if args.graphs:
        return of_graphs(args.seed, indices)
    return verdicts(args.engine, args.seed, indices, batch)


def _show(args: argparse.Namespace) -> None:
    case = _case(args, args.only)
    print(case)
    for number in range(case.sets if isinstance(case, Probe) else len(case.sets)):
        print(f"feeds {number}: {case.feeds(number)!r}")
    if isinstance(case, Probe):
        constants = zip(case.names, case.inputs, strict=True)
        print({name: x.first for name, x in constants if x is not None and x.constant})
    for message in _judge(args, [args.only], 1):
        print(message)


def _summary(found: Sequence[Verdict]) -> None:
    totals = Counter(v.outcome for v in found)
    print(", ".join(f"{name} {count}" for name, count in totals.most_common()))
    for outcome in totals:
        if outcome != "right" or any(v.kind.startswith("by ") for v in found):
            kinds = Counter(v.kind or "?" for v in found if v.outcome == outcome)
            print(f"{outcome}: " + ", ".join(f"{kind} {n}" for kind, n in kinds.most_common()))


if __name__ == "__main__":
    main()
