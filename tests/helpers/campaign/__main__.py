"""Random operators and graphs on an engine, beside ONNX Runtime: ``python -m campaign``.

Run from the root of the repository with ``PYTHONPATH=tests/helpers``. The same seed and count give
the same cases on every machine. Cases run in processes of their own: one that dies or hangs is
counted, and the others go on. ``--only 17`` runs one case and prints its inputs.

Ends with 1 unless every case is right or refused with a reason.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from campaign.judging import SETTINGS, Verdict, verdicts
from campaign.operators import probe
from campaign.workers import judged

_GOOD = ("right", "refused")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="campaign", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engine", choices=SETTINGS, default="opencl")
    parser.add_argument("--count", type=int, default=5000, help="of random operators")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--batch", type=int, default=20, help="operators in one model")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one model")
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
    indices = range(args.first, args.first + args.count)
    words = ["--engine", args.engine, "--seed", str(args.seed)]
    found = []
    for verdict in judged(words, indices, args.jobs, args.batch, args.timeout):
        found.append(verdict)
        if verdict.outcome not in _GOOD:
            what = verdict.what or str(probe(args.seed, verdict.index))
            print(f"{verdict.outcome} {verdict.index}: {what}: {verdict.why}", flush=True)
    _summary(found)
    sys.exit(any(v.outcome not in _GOOD for v in found))


def _work(args: argparse.Namespace) -> None:
    """In a process of its own: a line of JSON for each model that begins and each verdict."""
    numbers, _, batch = args.worker.partition("/")
    indices = [int(number) for number in numbers.split(",")]
    for told in verdicts(args.engine, args.seed, indices, int(batch)):
        line = told if isinstance(told, list) else asdict(told)
        print(json.dumps(line), flush=True)


def _show(args: argparse.Namespace) -> None:
    case = probe(args.seed, args.only)
    print(case)
    for name, x in zip(case.names, case.inputs, strict=True):
        for values in x.sets if x is not None else ():
            print(f"{name} {'constant ' if x.constant else ''}{values!r}")
    for told in verdicts(args.engine, args.seed, [args.only], 1):
        print(told)


def _summary(found: Sequence[Verdict]) -> None:
    totals = Counter(v.outcome for v in found)
    print(", ".join(f"{name} {count}" for name, count in totals.most_common()))
    for outcome in totals:
        if outcome != "right":
            kinds = Counter(v.kind or probe_kind(v) for v in found if v.outcome == outcome)
            print(f"{outcome}: " + ", ".join(f"{kind} {n}" for kind, n in kinds.most_common()))


def probe_kind(verdict: Verdict) -> str:
    return verdict.what.partition("[")[0]


if __name__ == "__main__":
    main()
