"""Damage to the cache must not change outputs: the goal is 0 wrong outputs and 0 errors.

Bits are flipped in every kind of file of a warm cache, with unchanged file times; processes are
killed while they fill a cache; disks are too small or read-only; and the cache of one processor is
used on another (qemu-user-static emulates an AVX2 processor on an AVX-512 one). Each output comes
from a new session, and is compared with the output with an undamaged cache. Small and read-only
disks need root.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from common import show, two_cores

from coexec import InferenceSession
from coexec.cache import DRAFTS
from coexec.errors import CacheWarning, CoexecError
from coexec.research import zoo

_EMULATOR = "qemu-x86_64-static"
_CHILD = """
import sys
sys.path[:0] = {path!r}
import numpy as np, coexec
model, devices, planner, cache, output = {words!r}
with coexec.InferenceSession(model, devices=devices, planner=planner, cache=cache) as session:
    inputs = session.get_inputs()
    rng = np.random.default_rng(0)
    found = session.run(None, {{i.name: rng.standard_normal(i.shape).astype(np.float32) for i in inputs}})
np.savez(output, *found)
"""  # noqa: E501


class Torture:
    """One model, its right outputs, and the folder for its caches."""

    def __init__(self, model: str, devices: list[str], folder: Path, rng: random.Random) -> None:
        self.devices, self.folder, self.rng = devices, folder, rng
        self.model = folder / "model.onnx"
        ir.save(zoo.build(model), self.model)
        self.warm = folder / "warm"
        self.right = self._answer(self.warm)
        self._answer(self.warm, "hope_greedy")

    def _answer(self, cache: Path, planner: str = "heft") -> list[Any]:
        with InferenceSession(
            self.model, devices=self.devices, planner=planner, cache=cache
        ) as session:
            rng = np.random.default_rng(0)
            feeds = {
                i.name: rng.standard_normal(i.shape).astype(np.float32)
                for i in session.get_inputs()
            }
            return session.run(None, feeds)

    def outcome(self, cache: Path) -> str:
        """Outcome of a session with ``cache``: "right", "rebuilt" (right, after a warning), "wrong"
        or "error"."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                outputs = self._answer(cache)
            except (CoexecError, OSError) as error:
                print(f"error: {error}", file=sys.stderr)
                return "error"
        if not self.is_right(outputs):
            return "wrong"
        return "rebuilt" if any(w.category is CacheWarning for w in caught) else "right"

    def is_right(self, found: list[Any]) -> bool:
        return all(
            np.abs(a - b).max() <= 1e-4 * np.abs(b).max()
            for a, b in zip(found, self.right, strict=True)
        )

    def words(self, planner: str, cache: Path, output: Path) -> str:
        words = [str(self.model), ",".join(self.devices), planner, str(cache), str(output)]
        return _CHILD.format(path=sys.path, words=words)


def flips(torture: Torture, count: int) -> Counter[str]:
    """Flip single bits. The kind of file is drawn first, so that kinds with few small files count
    as much as the many files of weights.

    Files that are only read if a plan is missing are tested without plans.
    """
    outcomes: Counter[str] = Counter()
    kinds: dict[str, list[Path]] = {}
    for file in sorted(torture.warm.rglob("*")):
        if file.is_file():
            kinds.setdefault(file.relative_to(torture.warm).parts[0], []).append(file)
    for _ in range(count):
        kind = torture.rng.choice(sorted(kinds))
        file = torture.rng.choice(kinds[kind])
        with _copy(torture) as cache:
            if kind in ("models", "lowered") or torture.rng.random() < 0.3:
                shutil.rmtree(cache / "plans")
            target = cache / file.relative_to(torture.warm)
            if target.exists():
                _flip(target, torture.rng)
            outcomes[torture.outcome(cache)] += 1
    return outcomes


@contextmanager
def _copy(torture: Torture) -> Iterator[Path]:
    """A copy of the warm cache; each try needs a new one, because damaged files are repaired."""
    cache = Path(tempfile.mkdtemp(dir=torture.folder))
    shutil.copytree(torture.warm, cache, dirs_exist_ok=True)
    try:
        yield cache
    finally:
        shutil.rmtree(cache)


def _flip(file: Path, rng: random.Random) -> None:
    stat = file.stat()
    with open(file, "r+b") as opened:
        place = rng.randrange(stat.st_size)
        opened.seek(place)
        byte = opened.read(1)[0]
        opened.seek(place)
        opened.write(bytes([byte ^ 1 << rng.randrange(8)]))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def kills(torture: Torture, count: int) -> Counter[str]:
    """Send SIGKILL at random moments while a cache is filled; the next process continues it."""
    outcomes: Counter[str] = Counter()
    cache = torture.folder / "killed"
    for _ in range(count):
        if torture.rng.random() < 0.3:
            shutil.rmtree(cache, ignore_errors=True)
        code = torture.words("heft", cache, torture.folder / "none.npz")
        child = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
        time.sleep(torture.rng.uniform(0.3, 4.0))
        child.send_signal(signal.SIGKILL)
        child.wait()
        outcomes[torture.outcome(cache)] += 1
        outcomes["drafts left"] += len(list(cache.glob(f"{DRAFTS}/*")))
        shutil.rmtree(cache / "plans", ignore_errors=True)
    return outcomes


def disks(torture: Torture) -> Iterator[tuple[str, Counter[str]]]:
    """Outcomes on file systems that are too small, and with a warm cache on a read-only one."""
    folder = torture.folder / "disk"
    folder.mkdir()
    for size in ("64k", "128k", "256k", "512k", "1m", "4m"):
        with _mounted(folder, "-t", "tmpfs", "-o", f"size={size}", "tmpfs") as why:
            outcomes = (
                Counter({why: 1}) if why else Counter(torture.outcome(folder) for _ in range(2))
            )
        yield f"disk of {size}", outcomes
    with _copy(torture) as cache, _mounted(cache, "--bind", str(cache)) as why:
        if not why:
            subprocess.run(["mount", "-o", "remount,ro,bind", str(cache)], check=True)
        yield "read-only", Counter({why: 1}) if why else Counter([torture.outcome(cache)])


@contextmanager
def _mounted(folder: Path, *words: str) -> Iterator[str]:
    """Mount a file system; yields the reason if this fails, otherwise an empty string."""
    done = subprocess.run(["mount", *words, str(folder)], capture_output=True, text=True)
    try:
        yield done.stderr.strip()
    finally:
        if not done.returncode:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def processors(torture: Torture) -> Counter[str]:
    """Outcomes with one cache on this processor, on one with AVX2 only, and on this one again."""
    emulator = shutil.which(_EMULATOR)
    if emulator is None:
        return Counter({f"{_EMULATOR} is not installed (Debian: qemu-user-static)": 1})
    outcomes: Counter[str] = Counter()
    emulated = [emulator, "-cpu", "Haswell"]
    output = torture.folder / "answer.npz"
    cache = torture.folder / "shared"
    for before in ([], emulated, [], emulated):
        code = torture.words("single", cache, output).replace(
            ",".join(torture.devices), torture.devices[0]
        )
        python = os.path.realpath(sys.executable)
        subprocess.run([*before, python, "-c", code], check=True, stderr=subprocess.DEVNULL)
        with np.load(output) as answers:
            outcomes[
                "right" if torture.is_right([answers[n] for n in answers.files]) else "wrong"
            ] += 1
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="squeezenet", choices=zoo.MODELS)
    parser.add_argument("--flips", type=int, default=500)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        torture = Torture(options.model, two_cores(), Path(folder), random.Random(options.seed))
        results = [
            (f"{options.flips} flipped bits", flips(torture, options.flips)),
            (f"{options.kills} kills", kills(torture, options.kills)),
            *disks(torture),
            ("AVX2 and here", processors(torture)),
        ]
    columns = ("right", "rebuilt", "wrong", "error", "drafts left")
    rows = []
    for what, counts in results:
        reason = "; ".join(key for key in counts if key not in columns)
        rows.append({"what": what, **{name: counts[name] for name in columns}, "skipped": reason})
    show(f"answers of {options.model} from a cache that was harmed", rows, options.json)
    if any(counts["wrong"] or counts["error"] or counts["drafts left"] for _, counts in results):
        sys.exit(json.dumps("some answers were wrong, or not given"))


if __name__ == "__main__":
    main()
