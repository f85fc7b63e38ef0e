"""No process is left behind and nothing hangs when planning ends early: the goal is 0 of each.

Sessions are closed at random moments of planning, and the program then still plans for a new
session. `coexec optimize --time` writes into a pipe, which ends when the last process that holds it
has ended; it also gets SIGINT, as by Ctrl-C, and SIGKILL at random moments. Install every engine
before: their libraries start processes of their own. Each run has a variable in its environment by
which its processes are found, whatever their parent is.
"""

import argparse
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import onnx_ir as ir
from common import show

from coexec.research import zoo

_VARIABLE = "COEXEC_LEFT_BEHIND"
_LIMIT_S = 180.0
"""Seconds until a run counts as one that hangs, beyond those that it was given."""
_GRACE_S = 15.0
"""Seconds in which all processes of a run have to end after it."""
_SESSIONS = 5
"""Sessions of one program."""
_PROGRAM = """
import sys, time, coexec
from coexec.selection import background
from coexec.selection.plan_selector import PlanSelector
from coexec.selection.plan_states import Patience
PlanSelector.limits = Patience(look_s=0.0, head_start_s=0.0)
model, folder, *seconds = sys.argv[1:]
for number, open_s in enumerate(seconds):
    with coexec.InferenceSession(model, cache=f"{folder}/{number}"):
        time.sleep(float(open_s))
with coexec.InferenceSession(model, cache=f"{folder}/last"):
    while background.PLANS.job is None or background.PLANS.job.child is None:
        time.sleep(0.1)
"""


@dataclass(frozen=True)
class Campaign:
    """Everything that the runs have in common."""

    model: Path
    folder: Path
    rng: random.Random
    runs: "count[int]"

    def outcome(self, words: list[str], open_s: float, sent: int | None = None) -> Counter[str]:
        """Run a command with a pipe as its standard output until the pipe ends.

        Args:
            open_s: seconds that the command takes by itself, or after which the signal is sent.
            sent: the signal.
        """
        run = f"{os.getpid()}-{next(self.runs)}"
        env = os.environ | {_VARIABLE: run, "XDG_CACHE_HOME": str(self.folder / "home")}
        process = subprocess.Popen(words, stdout=subprocess.PIPE, env=env, process_group=0)
        outcome = Counter(runs=1)
        try:
            if sent is not None:
                time.sleep(open_s)
                process.send_signal(sent)
            process.communicate(timeout=open_s + _LIMIT_S)
        except subprocess.TimeoutExpired:
            outcome["hangs"] += 1
        end_s = time.monotonic() + _GRACE_S
        while (left := _processes(run)) and time.monotonic() < end_s:
            time.sleep(0.1)
        outcome["left"] += len(left)
        for pid in left:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, signal.SIGKILL)
        process.communicate()
        return outcome

    def sessions(self) -> Counter[str]:
        """Several sessions of one program, each closed at a random moment."""
        seconds = [self.rng.uniform(0, 6) for _ in range(_SESSIONS)]
        with tempfile.TemporaryDirectory(dir=self.folder) as caches:
            words = [sys.executable, "-c", _PROGRAM, str(self.model), caches]
            return self.outcome([*words, *map(str, seconds)], sum(seconds))

    def piped(self) -> Counter[str]:
        """`coexec optimize` into a pipe, ended by its limit of time."""
        seconds = self.rng.randint(1, 5)
        with tempfile.TemporaryDirectory(dir=self.folder) as cache:
            command = shlex.join(self._optimize(seconds, cache))
            return self.outcome(["sh", "-c", f"{command} | tail -n 1"], seconds)

    def signalled(self, sent: int) -> Counter[str]:
        """`coexec optimize` that gets a signal at a random moment."""
        with tempfile.TemporaryDirectory(dir=self.folder) as cache:
            return self.outcome(self._optimize(30, cache), self.rng.uniform(0.5, 8), sent)

    def _optimize(self, seconds: int, cache: str) -> list[str]:
        coexec = str(Path(sys.executable).with_name("coexec"))
        output = str(Path(cache) / "plan.json")
        words = ["--time", str(seconds), "--cache", cache, "--output", output]
        return [coexec, "optimize", str(self.model), *words]


def _processes(run: str) -> list[int]:
    """Processes of a run. Those that only wait for their parent to note their end do not count."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"{_VARIABLE}={run}".encode() in variables:
            found.append(int(folder.name))
    return found


def main() -> None:
    # A shell ignores Ctrl-C for what it starts in the background, and so would all that is started.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="squeezenet", choices=zoo.MODELS)
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--optimize", type=int, default=50)
    parser.add_argument("--signals", type=int, default=20, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "model.onnx"
        ir.save(zoo.build(options.model), model)
        campaign = Campaign(model, folder, random.Random(options.seed), count())

        def add(what: str, number: int, run: Callable[[], Counter[str]]) -> None:
            total = sum((run() for _ in range(number)), Counter[str]())
            rows.append({"what": what, **{key: total[key] for key in ("runs", "hangs", "left")}})

        programs = -(-options.sessions // _SESSIONS)
        add(f"programs that close {_SESSIONS} sessions", programs, campaign.sessions)
        add("optimize into a pipe", options.optimize, campaign.piped)
        for sent in (signal.SIGINT, signal.SIGKILL):
            what = f"optimize, {sent.name} at a random moment"
            add(what, options.signals, lambda sent=sent: campaign.signalled(sent))
    show(f"planning of {options.model} that ended early", rows, options.json)
    if any(row["hangs"] or row["left"] for row in rows):
        sys.exit("something hangs, or processes were left behind")


if __name__ == "__main__":
    main()
