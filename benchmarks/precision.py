"""What `--precision` gains, with each error beside its limit.

`auto` chooses a plan in float32, and one with the lower precision allowed; then both run in turns.
The first choice has tried all engines in float32, so its plan is the best of them. Goals: a ratio
of at most 0.6 in the geometric mean, 1.02 in the worst case, and each error below its limit.

    python benchmarks/precision.py MODEL... [--precision bf16]
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from common import in_turns, show
from model_files import expanded, model_file

from coexec.errors import CoexecError
from coexec.precision import FLOAT32, PRECISIONS
from coexec.selection.chooser import Chooser
from coexec.settings import Settings


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", help="files, folders of files, or zoo names")
    parser.add_argument("--precision", default="bf16", choices=PRECISIONS[1:])
    parser.add_argument("--seconds", type=float, default=60.0, help="limit of each choice")
    parser.add_argument("--rounds", type=int, default=20, help="turns of the race")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    args = parser.parse_args()
    title = f"{args.precision} allowed, over the best plan in float32"
    ratios: list[float] = []
    for word in expanded(args.models):
        with tempfile.TemporaryDirectory() as folder:
            path = model_file(word, Path(folder))
            try:
                row = _row(path, args.precision, args.seconds, args.rounds)
                ratios.append(row["ratio"])
            except CoexecError as error:
                row = {"result": str(error)}
        show(title, [{"model": path.stem} | row], args.json)
    if ratios:
        mean, worst = statistics.geometric_mean(ratios), max(ratios)
        show("all models", [{"geometric mean": mean, "worst": worst}], args.json)


def _row(path: Path, precision: Any, seconds: float, rounds: int) -> dict[str, Any]:
    plans, took_s = {}, {}
    for allowed in (FLOAT32, precision):
        options = {"seconds": seconds}
        settings = Settings(
            precision=allowed, planner_options=options, cache=path.parent / "cache", assume=True
        )
        start_s, chooser = time.monotonic(), Chooser(str(path), settings)
        plans[allowed] = chooser.make()
        took_s[allowed] = time.monotonic() - start_s
    lower = plans[precision]
    assert lower.decision is not None
    feeds, _ = lower.work.model.accepted(lower.work.user_model.reference)
    with plans[FLOAT32].start() as base, lower.start() as ours:
        rivals = {FLOAT32: lambda: base.run(feeds), precision: lambda: ours.run(feeds)}
        outcome = in_turns(rivals, rounds)
    return {
        "ratio": outcome.ratio(precision, FLOAT32, "paced"),
        "in a loop": outcome.ratio(precision, FLOAT32, "loop"),
        "float32_s": outcome.median_s(FLOAT32, "paced"),
        f"{precision}_s": outcome.median_s(precision, "paced"),
        "choice, s": took_s[precision],
        "plan": str(lower.decision.taken),
        "result": lower.decision.precision or lower.decision.doubt or "float32 is as fast",
    }


if __name__ == "__main__":
    main()
