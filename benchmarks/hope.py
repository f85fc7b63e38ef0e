"""HOPE's tables with the paper's figures: on simulated phones, and measured on this machine.

    python benchmarks/hope.py                                # everything: hours
    python benchmarks/hope.py --parts phones                 # simulated
    python benchmarks/hope.py inception_v3 squeezenet --parts here --rounds 10 --json

Parts: "phones" (seven models, three phones, all planners; big and little cores), "here" (the same
on two cores of this machine, as two CPU clusters and as CPU and GPU, with ONNX Runtime and
OpenVINO), "clocks" (a slow CPU, simulated and here), "ablations" (tensor caching, merging, K, NT,
transfer times; caching also here). Measure while no other program runs.
"""

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Mapping

import hope_ablations
import hope_clocks
import hope_here
import hope_phones
from common import a_count, a_model, show, some_of
from hope_tables import AUTO, MODELS, PLANNED, Row, Tables, explained
from slow_device import WAYS

from coexec.errors import CoexecError
from coexec.research.platforms import NAMES

Arguments = argparse.Namespace


def main() -> None:
    options = _arguments()
    try:
        for part in options.parts:
            for title, table in PARTS[part](options):
                if table:
                    show(title, table, options.json)
    except CoexecError as error:
        sys.exit(f"hope.py: {error}")


def phones(options: Arguments) -> Tables:
    plans = options.plans
    rows = hope_phones.rows(plans, options.models, options.phones, options.planners)
    results = _gathered("phones", rows)
    yield from explained("simulated phones, each planner", results, options.json)
    yield from hope_phones.tables(results)
    yield from hope_phones.big_little(plans, options.models)


def here(options: Arguments) -> Tables:
    results = _gathered("here", hope_here.rows(options.models, options.planners, options))
    yield from explained("this machine, each planner", results, options.json)
    yield from hope_here.tables(results)


def clocks(options: Arguments) -> Tables:
    yield from hope_phones.clocks(options.plans, options.models)
    results = _gathered("clocks", hope_clocks.rows(options.models, options))
    yield from explained("this machine, one device slow", results, options.json)
    yield from hope_clocks.tables(results)


def ablations(options: Arguments) -> Tables:
    yield from hope_ablations.tables(options.plans, options.models, options.phones)
    results = _gathered("ablations", hope_ablations.caching_here(options.models, options))
    yield from explained("this machine, tensor caching", results, options.json)
    yield from hope_ablations.tables_here(results)


PARTS: Mapping[str, Callable[[Arguments], Tables]] = {
    "phones": phones,
    "here": here,
    "clocks": clocks,
    "ablations": ablations,
}


def _gathered(part: str, groups: Iterable[list[Row]]) -> list[Row]:
    """All rows. Progress is printed, because real runs take long."""
    all_rows: list[Row] = []
    for rows in groups:
        all_rows += rows
        print(f"{part}: {rows[0]['model']} on {rows[0]['platform']} done", file=sys.stderr)
    if not all_rows:
        print(f"{part}: needs two cores, this process may use one; left out", file=sys.stderr)
    return all_rows


def _arguments() -> Arguments:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    planners = (*PLANNED, AUTO)
    parser.add_argument(
        "models",
        nargs="*",
        default=MODELS,
        type=a_model,
        metavar="MODEL",
        help="names of the zoo or files; by default the paper's",
    )
    parser.add_argument("--parts", type=some_of(PARTS), default=[*PARTS])
    parser.add_argument("--phones", type=some_of(NAMES), default=hope_phones.PHONES)
    parser.add_argument(
        "--pairs",
        type=some_of(hope_here.ENGINES),
        default=hope_here.ENGINES,
        help="engines of the second core",
    )
    parser.add_argument("--planners", type=some_of(planners), default=planners)
    parser.add_argument("--rounds", type=a_count, default=30, help="turns of each")
    parser.add_argument(
        "--shares",
        type=_shares,
        default=hope_clocks.SHARES,
        help="of its full speed that a slow device has",
    )
    parser.add_argument("--slow-by", choices=WAYS, default=WAYS[0])
    parser.add_argument(
        "--time-limit",
        type=_seconds,
        metavar="SECONDS",
        help="of hope_ilp and cpsat for a plan; by default their own",
    )
    parser.add_argument("--cache", help="folder for profiles and plans")
    parser.add_argument("--fresh", action="store_true", help="profile anew")
    parser.add_argument("--json", action="store_true", help="a table as JSON in each line")
    options = parser.parse_args()
    options.plans = hope_phones.Plans(options.time_limit)
    return options


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def _shares(text: str) -> list[float]:
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write for example 0.5,1") from None
    if not all(0.05 <= share <= 1 for share in shares):
        raise argparse.ArgumentTypeError(f"{text!r}: shares are between 0.05 and 1")
    return shares


if __name__ == "__main__":
    main()
