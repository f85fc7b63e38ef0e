"""Whether the verdicts of `coexec optimize` come in time and hold when the plan is measured again.

Each model with an empty cache, the command as a user starts it. A plan that was kept is then raced
by `coexec bench` with ONNX Runtime's session. Goals: 35 s where the limit is 30, and ratios within
5 %. A row is printed as soon as it is there. Measure while no other program runs.

    python benchmarks/verdicts.py MODEL...
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import show
from model_files import expanded, model_file


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", help="files, folders of files, or zoo names")
    parser.add_argument("--time", type=float, default=30.0, help="seconds for each verdict")
    parser.add_argument("--rounds", type=int, default=20, help="turns of the second measurement")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    args = parser.parse_args()
    for word in expanded(args.models):
        with tempfile.TemporaryDirectory() as folder:
            path = model_file(word, Path(folder))
            row = {"model": path.stem} | _row(path, Path(folder), args.time, args.rounds)
        show("verdicts, and the ratio when measured again", [row], args.json)


def _row(path: Path, folder: Path, limit_s: float, rounds: int) -> dict[str, Any]:
    plan, cache = folder / "kept.plan.json", ("--cache", str(folder / "cache"))
    start_s = time.monotonic()
    found = _said("optimize", str(path), "--time", f"{limit_s}", "--output", str(plan), *cache)
    row = {"took, s": time.monotonic() - start_s}
    if "verdict" not in found:
        return row | {"verdict": found["error"]["message"]}
    row |= {key: found[key] for key in ("is_faster", "ratio", "doubt", "unfinished")}
    if plan.exists():
        raced = _said("bench", str(path), "--plan", str(plan), "--repeats", f"{rounds}", *cache)
        if "rows" not in raced:
            return row | {"verdict": found["verdict"], "bench": raced["error"]["message"]}
        ours = raced["rows"][0]
        row |= {f"again, {figure}": 1 / ours[f"{figure}_ratio"] for figure in ("paced", "loop")}
    return row | {"verdict": found["verdict"]}


def _said(*words: str) -> dict[str, Any]:
    """What a verb prints with --json, errors too."""
    command = (sys.executable, "-m", "coexec", *words, "--json")
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    answer: dict[str, Any] = json.loads(said.stdout or said.stderr)
    return answer


if __name__ == "__main__":
    main()
