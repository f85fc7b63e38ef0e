"""What a program gets when nothing but its import is changed.

`coexec.InferenceSession(path)` against `onnxruntime.InferenceSession(path)`, default settings of
both, each in a process of its own, in turns; on models that are given, on those that the packages
rapidocr-onnxruntime and silero-vad ship, and on all that rapidocr does with 50 pages. coexec is
measured when its choice is made, and its first answer with an empty cache. Goals: on no model more
than 1.02 of ONNX Runtime's time, the mean below 1; a first answer within 1.2 of its time and 1.3 of
its memory; the same text of every page, the first page within 1.2, all pages no later.

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

from coexec.choosing.race import REQUESTS, Outcome, Pacing, compete, turn
from coexec.errors import CoexecError, ExecutionError, first_line
from coexec.frontend.check import worst_difference

BASELINE = "onnxruntime"
PARTS = ("models", "packages", "pages")
PACING = Pacing(paced=2, loop=5)
_WARM_UP = 3
_RUNS = 20
"""Requests after the first one, before the memory is read at the end."""


@dataclass
class Compared:
    """What became of one model."""

    model: str
    timed: list[dict[str, Any]] = field(default_factory=list)
    """A row for each figure."""
    first: dict[str, Any] = field(default_factory=dict)
    failed: str = ""


def main() -> None:
    args = _arguments()
    found = []
    for word in _words(args):
        one = _compared(word, args)
        print(f"{one.model}: {one.failed or 'done'}", file=sys.stderr)
        found.append(one)
    ours = f"{args.ours} over {BASELINE}"
    if found:
        timed = [row for one in found for row in one.timed]
        show(f"{ours}, default settings, requests", timed, args.json)
        show(f"{ours}, first answer", [one.first for one in found if one.first], args.json)
        show(f"{ours}, summary", list(_summary(found)), args.json)
        failed = [{"what": one.model, "why": one.failed} for one in found if one.failed]
        _show_failed(ours, failed, args.json)
    if "pages" in args.parts:
        rows, failed = pages_read(BASELINE, args.ours, args.pages, args.repeats)
        show(f"{ours}, rapidocr reads {args.pages} pages", rows, args.json)
        _show_failed(ours, failed, args.json)


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
    """The models of all parts; packages that are missing are left out, with the reason."""
    found = expanded(args.models) if "models" in args.parts else []
    if "packages" in args.parts:
        for package in PACKAGES:
            try:
                found += packaged(package)
            except CoexecError as error:
                print(f"left out: {error}", file=sys.stderr)
    return found


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
    """One model with both classes. ``folder`` is for its file, its inputs and the caches."""

    def __init__(self, word: str, folder: Path, args: Any) -> None:
        self._path, self._folder = model_file(word, folder), folder
        self._rounds, self._starts = args.rounds, args.starts
        # By side, as ONNX Runtime can be compared with itself.
        self._sides = {"theirs": BASELINE, "ours": args.ours}
        self._feeds = folder / "feeds"
        self._feeds.write_bytes(pickle.dumps(feeds_for(self._path)))

    def first_answers(self) -> dict[str, Any]:
        """Of programs that are started in turns. The first ones stay until the choice is made.

        Raises:
            ExecutionError: one of them failed.
        """
        found: dict[str, list[dict[str, Any]]] = {side: [] for side in self._sides}
        for number in range(1 + max(1, self._starts)):
            for side in sorted(self._sides, reverse=number % 2 == 1):
                found[side].append(self._answered(side, number))
        theirs, ours = (_medians(found[side]) for side in self._sides)
        difference = self._difference(*(self._outputs(side) for side in self._sides))
        return _first_row(theirs, ours) | {"difference": f"{difference:.1e}"}

    def _answered(self, side: str, number: int) -> dict[str, Any]:
        """A program with an empty cache. The first leaves behind what the race starts from."""
        words = self._sides[side], str(self._path), str(self._feeds), str(self._file(side))
        if number == 0:
            found = measured("first_answer.py", *words, str(_RUNS), cache=self._cache(side))
            del found["program_s"]  # the others end after one answer
            return found
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
        """A row for each figure: a race between processes that have made their choice.

        Raises:
            CoexecError: one of them failed.
        """
        makers = {
            side: partial(_ready, module, str(self._path), self._feeds, self._cache(side))
            for side, module in self._sides.items()
        }
        with started(makers, _fail) as contestants:
            turns = {one.name: one.turn for one in contestants}
            watch = watch_of(contestants)
            outcome = compete(turns, (self._rounds, self._rounds), watch=watch).complete()
        theirs, ours = contestants
        difference = self._difference(theirs.outputs, ours.outputs)
        for row in _figures(outcome):
            yield row | {"difference": f"{difference:.1e}", "runs on": ours.note}


def _ready(module: str, path: str, feeds: Path, cache: Path) -> Ready:
    """A session whose choice has been made, warm."""
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
    """Of each number; those which only some of the programs have, of these."""
    keys = dict.fromkeys(key for start in starts for key in start)
    return {key: statistics.median(one[key] for one in starts if key in one) for key in keys}


def _first_row(theirs: dict[str, float], ours: dict[str, float]) -> dict[str, Any]:
    """Imports count in "first", which is what a user waits for; not in "creation + run"."""

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
    """Geometric mean and worst of each ratio."""
    ratios = {words: [(row["ratio"], row["model"]) for one in found for row in one.timed
                      if row["requests"] == words] for words in REQUESTS.values()}  # fmt: skip
    titles = {
        "ratio": "first answer", "creation + run": "first answer without imports",
        "memory": "memory, first answer", "memory, end": "memory, end",
    }  # fmt: skip
    for key, title in titles.items():
        ratios[title] = [(one.first[key], one.model) for one in found if one.first]
    for title, values in ratios.items():
        if values:
            worst, model = max(values)
            yield {
                "what": title, "models": len(values), "failed": len(found) - len(values),
                "geometric mean": math.exp(statistics.fmean(math.log(v) for v, _ in values)),
                "worst": worst, "which": model,
            }  # fmt: skip


if __name__ == "__main__":
    main()
