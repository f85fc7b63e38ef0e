"""Latency of requests before, during and after planning in the background.

A program that sends requests in a loop, with ONNX Runtime and with its import changed to coexec,
each in a separate process with an empty cache: ONNX Runtime, coexec, ONNX Runtime. Goal: medians of
at most 1.05 times ONNX Runtime's, in each of the three periods.

    python benchmarks/while_planning.py MODEL...
"""

import argparse
import pickle
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import show
from model_files import expanded, model_file
from programs import measured

from coexec.frontend.load import random_inputs
from coexec.workbench import Settings, Workbench

_BEGINS = "planning in the background begins"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", help="files, folders of files, or zoo names")
    parser.add_argument("--seconds", type=int, default=10, help="of requests after the choice")
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
    work = Workbench(str(path), Settings(cache=folder / "feeds-cache"))
    feeds.write_bytes(pickle.dumps(random_inputs(work.model.graph)))

    def program(module: str, run: str) -> dict[str, Any]:
        words = (module, str(path), str(feeds), str(seconds))
        return measured("requests_in_a_loop.py", *words, cache=folder / run)

    ort = [program("onnxruntime", "first")]
    coexec_run = program("coexec", "ours")
    ort.append(program("onnxruntime", "last"))
    base_s = statistics.median(s for run in ort for _, s in run["requests"])
    ratios = {name: statistics.median(times) / base_s for name, times in _times(coexec_run)}
    return {"onnxruntime_s": base_s, "planned_s": _planned_s(coexec_run["said"])} | ratios


def _times(program: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[float]]]:
    """Seconds of the requests before, during and after planning; periods without requests are left
    out."""
    log_lines, requests = program["said"], program["requests"]
    begins_s = next((at for at, line in log_lines if _BEGINS in line), None)
    ends_s = max((at for at, _ in log_lines), default=0.0)
    if begins_s is None:
        yield "after", [s for _, s in requests]
        return
    parts = {"before": (0.0, begins_s), "while": (begins_s, ends_s), "after": (ends_s, None)}
    for name, (low_s, high_s) in parts.items():
        times = [s for at, s in requests if at >= low_s and (high_s is None or at < high_s)]
        if times:
            yield name, times


def _planned_s(said: Sequence[tuple[float, str]]) -> float:
    return max((at for at, _ in said), default=0.0)


if __name__ == "__main__":
    main()
