"""CoDL's tables with the paper's figures: on simulated phones, and measured on this machine.

    python benchmarks/codl.py                                # everything: hours
    python benchmarks/codl.py --phones                       # simulated: a minute
    python benchmarks/codl.py --phones snapdragon_855 --models vgg16 yolov2
    python benchmarks/codl.py --here cpp,half --models squeezenet --rounds 10 --json

On phones: five models, three phones, each processor alone, mulayer, codl by dimension without
chains, codl, and the gain of each of its ideas. Here: the same on two cores, as ONNX Runtime with
`cpp`, as two clusters, and with one of these slowed down. Measure while no other program runs.
"""

import argparse
import sys
from collections.abc import Iterable

import codl_ablations
import codl_here
import codl_phones
from codl_tables import MODELS, MULAYER, PHONES
from common import a_count, a_model, show, some_of
from hope_phones import Plans
from hope_tables import Row, Tables, explained

from coexec.errors import CoexecError
from coexec.planners import PLANNERS

Arguments = argparse.Namespace


def main() -> None:
    options = _arguments()
    if MULAYER not in PLANNERS:
        print(f"left out: there is no planner {MULAYER}", file=sys.stderr)
    try:
        for part in (_phones, _here):
            for title, table in part(options):
                if table:
                    show(title, table, options.json)
    except CoexecError as error:
        sys.exit(f"codl.py: {error}")


def _phones(options: Arguments) -> Tables:
    if not options.phones:
        return
    plans, models = Plans(), options.models or MODELS
    rows = _gathered(codl_phones.rows(plans, models, options.phones))
    yield from explained("simulated phones, each way", rows, options.json)
    yield from codl_phones.tables(rows)
    yield from codl_ablations.tables(plans, models, options.phones)


def _here(options: Arguments) -> Tables:
    if not options.here:
        return
    models = options.models or codl_here.MODELS
    rows = _gathered(codl_here.rows(models, options.here, options))
    if not rows:
        print("here: needs two cores, this process may use one; left out", file=sys.stderr)
    yield from explained("this machine, each way", rows, options.json)
    yield from codl_here.tables(rows)


def _gathered(groups: Iterable[list[Row]]) -> list[Row]:
    """All rows. Progress is printed, because real runs take long."""
    all_rows: list[Row] = []
    for rows in groups:
        all_rows += rows
        print(f"{rows[0]['model']} on {rows[0]['platform']} done", file=sys.stderr)
    return all_rows


def _arguments() -> Arguments:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        epilog="Without --phones and --here both are done.",
    )
    parser.add_argument(
        "--models",
        nargs="+",
        type=a_model,
        metavar="MODEL",
        help="names of the zoo or files; by default the paper's on phones and "
        f"{', '.join(codl_here.MODELS)} here",
    )
    parser.add_argument(
        "--phones",
        nargs="?",
        const=[*PHONES],
        type=some_of(PHONES),
        help=f"simulated phones; by default {','.join(PHONES)}",
    )
    parser.add_argument(
        "--here",
        nargs="?",
        const=[*codl_here.CASES],
        type=some_of(codl_here.CASES),
        help=f"this machine; by default {','.join(codl_here.CASES)}",
    )
    parser.add_argument("--rounds", type=a_count, default=30, help="turns of each")
    parser.add_argument("--cache", help="folder for profiles and plans")
    parser.add_argument("--fresh", action="store_true", help="profile anew")
    parser.add_argument("--json", action="store_true", help="a table as JSON in each line")
    options = parser.parse_args()
    if not options.phones and not options.here:
        options.phones, options.here = [*PHONES], [*codl_here.CASES]
    return options


if __name__ == "__main__":
    main()
