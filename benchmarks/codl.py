"""CoDL's tables, beside the paper's figures: on simulated phones, and measured on this machine.

    python benchmarks/codl.py                                # everything: hours
    python benchmarks/codl.py --phones                       # simulated: a minute
    python benchmarks/codl.py --phones snapdragon_855 --models vgg16 yolov2
    python benchmarks/codl.py --here opencl,half --models squeezenet --rounds 10 --json

The phones: five models, three phones, each processor alone, mulayer, codl by dimension without
chains, codl, and what each of its ideas is worth. Here: the same on two cores, as ONNX Runtime
beside OpenCL, as two clusters, and with one of these slowed down. Measure with nothing else
running.
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
    found = _gathered(codl_phones.rows(plans, models, options.phones))
    yield from explained("simulated phones, each way", found, options.json)
    yield from codl_phones.tables(found)
    yield from codl_ablations.tables(plans, models, options.phones)


def _here(options: Arguments) -> Tables:
    if not options.here:
        return
    models = options.models or codl_here.MODELS
    found = _gathered(codl_here.rows(models, options.here, options))
    if not found:
        print("here: needs two cores, this process may use one; left out", file=sys.stderr)
    yield from explained("this machine, each way", found, options.json)
    yield from codl_here.tables(found)


def _gathered(groups: Iterable[list[Row]]) -> list[Row]:
    """All rows; says on the way what is done, as real runs take long."""
    found: list[Row] = []
    for rows in groups:
        found += rows
        print(f"{rows[0]['model']} on {rows[0]['platform']} done", file=sys.stderr)
    return found


def _arguments() -> Arguments:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        epilog="Without --phones and --here both are done.",
    )
    parser.add_argument("--models", nargs="+", type=a_model, metavar="MODEL",
                        help="names of the zoo or files; by default the paper's on phones and "
                        f"{', '.join(codl_here.MODELS)} here")  # fmt: skip
    parser.add_argument("--phones", nargs="?", const=[*PHONES], type=some_of(PHONES),
                        help=f"simulated phones; by default {','.join(PHONES)}")  # fmt: skip
    parser.add_argument("--here", nargs="?", const=[*codl_here.CASES],
                        type=some_of(codl_here.CASES),
                        help=f"this machine; by default {','.join(codl_here.CASES)}")  # fmt: skip
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
