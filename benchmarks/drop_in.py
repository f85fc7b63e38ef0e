"""Speed and memory of a program in which only the import is changed.

`coexec.InferenceSession(path)` against `onnxruntime.InferenceSession(path)`, both with default
settings, each in a separate process, in turns. The models are those of the command line and those
of the packages rapidocr-onnxruntime and silero-vad; in addition, rapidocr reads 50 pages. coexec is
measured after its choice of a plan; its first outputs are measured with an empty cache. Goals: on
no model more than 1.02 of ONNX Runtime's time, the mean below 1; first outputs within 1.2 of its
time and 1.3 of its memory; equal text of every page, the first page within 1.2, all pages no later.

    python benchmarks/drop_in.py FOLDER_OF_MODELS
    python benchmarks/drop_in.py FOLDER_OF_MODELS --ours onnxruntime     # the noise
"""

import argparse
import math
import os
import pickle
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from common import show, tell_disturbances
from contestants import Ready, started, watch_of
from drop_in_pages import pages_read
from model_files import PACKAGES, expanded, feeds_for, model_file, packaged
from programs import measured

from coexec.errors import CoexecError, ExecutionError, first_line
from coexec.model.difference import worst_difference
from coexec.selection.race import REQUESTS, Outcome, Pacing, compete, turn

BASELINE = "onnxruntime"
PARTS = ("models", "packages", "pages")
PACING = Pacing(paced=2, loop=5)
_WARM_UP = 3
_RUNS = 20
"""Number of requests between the first one and the last reading of the memory."""


@dataclass
class Compared:
    """The results of one model."""

    model: str
    timed: list[dict[str, Any]] = field(default_factory=list)
    """A row for each kind of request."""
    first: dict[str, Any] = field(default_factory=dict)
    failed: str = ""


def main() -> None:
    args = _arguments()
    results = []
    for word in _words(args):
        one = _compared(word, args)
        print(f"{one.model}: {one.failed or 'done'}", file=sys.stderr)
        results.append(one)
    title = f"{args.ours} over {BASELINE}"
    if results:
        timed = [row for one in results for row in one.timed]
        show(f"{title}, default settings, requests", timed, args.json)
        show(f"{title}, first answer", [one.first for one in results if one.first], args.json)
        show(f"{title}, summary", list(_summary(results)), args.json)
        failed = [{"what": one.model, "why": one.failed} for one in results if one.failed]
        _show_failed(title, failed, args.json)
    if "pages" in args.parts:
        rows, failed = pages_read(BASELINE, args.ours, args.pages, args.repeats)
        show(f"{title}, rapidocr reads {args.pages} pages", rows, args.json)
        _show_failed(title, failed, args.json)


def _show_failed(ours: str, failed: Sequence[dict[str, Any]], as_json: bool) -> None:
    if failed:
        show(f"{ours}, failed", failed, as_json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", help="files, folders or zoo names")
    parser.add_argument("--ours", default="coexec", help="module of the class that is compared")
    parser.add_argument("--parts", default=",".join(PARTS), help="any of " + ", ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=30, help="turns of each")
    parser.add_argument("--starts", type=int, default=6, help="first answers of each, beside one")
    parser.add_argument("--pages", type=int, default=50, help="pages that rapidocr reads")
    parser.add_argument("--repeats", type=int, default=3, help="programs that read them, of each")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    args = parser.parse_args()
    args.parts = args.parts.split(",")
    unknown = set(args.parts) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}")
    return args


def _words(args: Any) -> list[str]:
    """The models of all parts. For a missing package, the reason is printed."""
    words = expanded(args.models) if "models" in args.parts else []
    if "packages" in args.parts:
        for package in PACKAGES:
            try:
                words += packaged(package)
            except CoexecError as error:
                print(f"left out: {error}", file=sys.stderr)
    return words


def _compared(word: str, args: Any) -> Compared:
    compared = Compared(Path(word).stem)
    with tempfile.TemporaryDirectory() as name:
        try:
            sides = _Sides(word, Path(name), args)
            compared.first = {"model": compared.model} | sides.first_answers()
            compared.timed = [{"model": compared.model} | row for row in sides.timed()]
        except CoexecError as error:
            compared.failed = first_line(error)
    return compared


class _Sides:
    """Comparison of both classes on one model. ``folder`` has its file, inputs and caches."""

    def __init__(self, word: str, folder: Path, args: Any) -> None:
        self._path, self._folder = model_file(word, folder), folder
        self._rounds, self._starts = args.rounds, args.starts
        # Keys are sides and not modules, because ONNX Runtime can be compared with itself.
        self._sides = {"theirs": BASELINE, "ours": args.ours}
        self._feeds = folder / "feeds"
        self._feeds.write_bytes(pickle.dumps(feeds_for(self._path)))

    def first_answers(self) -> dict[str, Any]:
        """Times of first outputs, from programs that are started in turns. The first program of
        each side runs until the choice is made.

        Raises:
            ExecutionError: a program failed.
        """
        starts: dict[str, list[dict[str, Any]]] = {side: [] for side in self._sides}
        for number in range(1 + max(1, self._starts)):
            for side in sorted(self._sides, reverse=number % 2 == 1):
                starts[side].append(self._answered(side, number))
        ort_medians, coexec_medians = (_medians(starts[side]) for side in self._sides)
        difference = self._difference(*(self._outputs(side) for side in self._sides))
        return _first_row(ort_medians, coexec_medians) | {"difference": f"{difference:.1e}"}

    def _answered(self, side: str, number: int) -> dict[str, Any]:
        """Measurements of a program with an empty cache. The cache of the first program is kept for
        the race."""
        words = self._sides[side], str(self._path), str(self._feeds), str(self._file(side))
        if number == 0:
            result = measured("first_answer.py", *words, str(_RUNS), cache=self._cache(side))
            del result["program_s"]  # the others end after one answer
            return result
        return measured("first_answer.py", *words, "0", cache=self._folder / f"{side}-{number}")

    def _cache(self, side: str) -> Path:
        return self._folder / f"{side}-cache"

    def _file(self, side: str) -> Path:
        return self._folder / f"{side}-outputs"

    def _outputs(self, side: str) -> list[Any]:
        outputs: list[Any] = pickle.loads(self._file(side).read_bytes())
        return outputs

    @staticmethod
    def _difference(expected: Sequence[Any], found: Sequence[Any]) -> float:
        return max(worst_difference(a, b) for a, b in zip(found, expected, strict=True))

    def timed(self) -> Iterator[dict[str, Any]]:
        """A row for each kind of request: a race between processes that have made their choice.

        Raises:
            CoexecError: a process failed.
        """
        makers = {
            side: partial(_ready, module, str(self._path), self._feeds, self._cache(side))
            for side, module in self._sides.items()
        }
        with started(makers, _fail) as contestants:
            turns = {one.name: one.turn for one in contestants}
            watch = watch_of(contestants)
            outcome = compete(turns, (self._rounds, self._rounds), watch=watch).complete()
        ort_contestant, coexec_contestant = contestants
        difference = self._difference(ort_contestant.outputs, coexec_contestant.outputs)
        for row in _figures(outcome):
            yield row | {"difference": f"{difference:.1e}", "runs on": coexec_contestant.note}


def _ready(module: str, path: str, feeds: Path, cache: Path) -> Ready:
    """A session after its choice and warm-up."""
    os.environ["XDG_CACHE_HOME"] = str(cache)
    session = import_module(module).InferenceSession(path)
    run = partial(session.run, None, pickle.loads(feeds.read_bytes()))
    run()
    getattr(session, "wait", lambda: None)()  # ONNX Runtime's class has nothing to wait for
    for _ in range(_WARM_UP):
        outputs = run()
    return Ready(outputs, partial(turn, run, PACING), note=", ".join(session.get_providers()))


def _fail(name: str, why: str) -> None:
    raise ExecutionError(f"{name}: {why}")


def _figures(outcome: Outcome[str]) -> Iterator[dict[str, Any]]:
    tell_disturbances(outcome)
    for figure, words in REQUESTS.items():
        yield {
            "requests": words,
            "ONNX Runtime_s": outcome.median_s("theirs", figure),
            "ours_s": outcome.median_s("ours", figure),
            "ratio": outcome.ratio("ours", "theirs", figure),
        }


def _medians(starts: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The median of each number, over the programs that have the number."""
    keys = dict.fromkeys(key for start in starts for key in start)
    return {key: statistics.median(one[key] for one in starts if key in one) for key in keys}


def _first_row(theirs: dict[str, float], ours: dict[str, float]) -> dict[str, Any]:
    """A row of first outputs. "first" includes imports, because a user waits for them; "creation +
    run" does not."""

    def first(side: dict[str, float]) -> float:
        return side["import_s"] + side["creation_s"] + side["run_s"]

    def without_import(side: dict[str, float]) -> float:
        return side["creation_s"] + side["run_s"]

    return {
        "ONNX Runtime_s": first(theirs),
        "ours_s": first(ours),
        "ratio": first(ours) / first(theirs),
        "creation + run": without_import(ours) / without_import(theirs),
        "program": ours["program_s"] / theirs["program_s"],
        "choice_s": ours["waited_s"],
        "MiB": f"{theirs['first_bytes'] / 2**20:.0f} / {ours['first_bytes'] / 2**20:.0f}",
        "memory": ours["first_bytes"] / theirs["first_bytes"],
        "MiB, end": f"{theirs['end_bytes'] / 2**20:.0f} / {ours['end_bytes'] / 2**20:.0f}",
        "memory, end": ours["end_bytes"] / theirs["end_bytes"],
    }


def _summary(found: Sequence[Compared]) -> Iterator[dict[str, Any]]:
    """The geometric mean and the worst value of each ratio."""
    ratios = {
        words: [
            (row["ratio"], row["model"])
            for one in found
            for row in one.timed
            if row["requests"] == words
        ]
        for words in REQUESTS.values()
    }
    titles = {
        "ratio": "first answer",
        "creation + run": "first answer without imports",
        "memory": "memory, first answer",
        "memory, end": "memory, end",
    }
    for key, title in titles.items():
        ratios[title] = [(one.first[key], one.model) for one in found if one.first]
    for title, values in ratios.items():
        if values:
            worst, model = max(values)
            yield {
                "what": title,
                "models": len(values),
                "failed": len(found) - len(values),
                "geometric mean": math.exp(statistics.fmean(math.log(v) for v, _ in values)),
                "worst": worst,
                "which": model,
            }


if __name__ == "__main__":
    main()
