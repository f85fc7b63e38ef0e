"""What requests take before, while and after a way to run the model is looked for.

A program that asks as fast as it can, with ONNX Runtime and with its import changed to coexec, each
in a process of its own with an empty cache: ONNX Runtime, coexec, ONNX Runtime. Goal: medians of at
most 1.05 of ONNX Runtime's, in each of the three times.

    python benchmarks/while_planning.py MODEL...
"""

import argparse
import math
import pickle
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import show
from model_files import expanded, model_file
from programs import measured

from coexec.selection.planning_context import PlanningContext
from coexec.settings import Settings

_BEGINS, _ENDS = "planning in the background begins", "decided in"
_BASE_S = 30
"""Of requests to ONNX Runtime, before and after."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", help="files, folders of files, or zoo names")
    parser.add_argument("--seconds", type=int, default=90, help="of requests to coexec")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number, word in enumerate(expanded(args.models)):
            path = model_file(word, Path(folder))
            rows.append({"model": path.stem} | _row(path, Path(folder) / str(number), args.seconds))
    show("a request's median time, seconds; ratios to ONNX Runtime's", rows, args.json)


def _row(path: Path, folder: Path, seconds: int) -> dict[str, Any]:
    folder.mkdir()
    feeds = folder / "feeds"
    work = PlanningContext(str(path), Settings(cache=folder / "feeds-cache", assume=True))
    feeds.write_bytes(pickle.dumps(next(iter(work.model.candidates()))))

    def program(module: str, run: str, seconds: int = _BASE_S) -> dict[str, Any]:
        words = (module, str(path), str(feeds), str(seconds))
        return measured("requests_in_a_loop.py", *words, cache=folder / run)

    ort = [program("onnxruntime", "first")]
    ours = program("coexec", "ours", seconds)
    ort.append(program("onnxruntime", "last"))
    base_s = statistics.median(s for run in ort for _, s in run["requests"])
    medians = {name: statistics.median(times) / base_s for name, times in _times(ours)}
    return {"onnxruntime_s": base_s, "decided_s": _at(ours["said"], _ENDS)} | medians


def _times(program: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[float]]]:
    """Seconds of the requests before, while and after planning, as far as there were some."""
    begins_s, ends_s = (_at(program["said"], text) or math.inf for text in (_BEGINS, _ENDS))
    parts = {"before": (0.0, begins_s), "while": (begins_s, ends_s), "after": (ends_s, math.inf)}
    for name, (low_s, high_s) in parts.items():
        if times := [s for at_s, s in program["requests"] if low_s <= at_s < high_s]:
            yield name, times


def _at(said: Sequence[tuple[float, str]], text: str) -> float | None:
    """Seconds after which a line with ``text`` was logged; None if it was not."""
    return next((at_s for at_s, line in said if text in line), None)


if __name__ == "__main__":
    main()
