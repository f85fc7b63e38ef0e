"""A cluster in the test bed: predicted against measured periods, faults, and a slow consumer.

    python benchmarks/testbed/cluster_runs.py periods     # models x planners
    python benchmarks/testbed/cluster_runs.py faults      # a machine killed, a link cut
    python benchmarks/testbed/cluster_runs.py joins       # a machine more
    python benchmarks/testbed/cluster_runs.py consumer    # 2,000 frames, taken slowly now and then

Machines compute at a pace, see docs/testbed.md. Everything else is real: Ray, messages on a network
of 50 Mbit/s, the conductor. As root, on Linux.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray_nodes
from bed import Testbed
from bed_probe import why_not

from coexec.engines.detect import usable_cores

_DRIVER = Path(__file__).with_name("cluster_driver.py")
_SOURCE = Path(__file__).parents[2] / "src"
_END_S = 60.0
_LOAD = 0.8
Event = dict[str, Any]
Told = Callable[[Event], None]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["periods", "faults", "joins", "consumer"])
    parser.add_argument("--models", nargs="+", default=["squeezenet", "mobilenet_v2", "resnet34"])
    parser.add_argument("--planners", nargs="+", default=["pico", "pico_blocks", "coedge"])
    parser.add_argument("--gflops", nargs="+", type=float, default=[4.0, 2.0, 1.0, 1.0])
    parser.add_argument("--medium", choices=["ports", "shared"], default="ports")
    parser.add_argument("--mbit", type=float, default=50.0)
    parser.add_argument("--frames", type=int, default=0, help="by default as each part needs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    reason = why_not(options.medium)
    if reason:
        print(f"not run: {reason}", file=sys.stderr)
        return 2
    return PARTS[options.what](options)


def periods(options: argparse.Namespace) -> int:
    """Period and answers of each model by each planner."""
    errors = []
    print(f"{'model':14} {'planner':14} stages  predicted  measured  off    differs  rows")
    with cluster(options) as ask:
        for model in options.models:
            for planner in options.planners:
                asked = {
                    "model": f"zoo:{model}",
                    "planner": planner,
                    "frames": options.frames or 40,
                }
                began: list[Event] = []
                done = ask(asked, began.append)
                if done["event"] == "failed":
                    print(f"{model:14} {planner:14} {done['error']}")
                    continue
                ready = next(event for event in began if event["event"] == "ready")
                off = ready["period_s"] / done["measured_period_s"] - 1
                errors.append(abs(off))
                rows = " ".join(map(_rows, ready["rows"]))
                print(
                    f"{model:14} {planner:14} {ready['stages']:6} {ready['period_s']:9.3f} "
                    f"{done['measured_period_s']:9.3f} {off:+7.1%} {done['worst']:9.1e}  "
                    f"{rows[:60]}",
                    flush=True,
                )
                if options.json:
                    print(json.dumps({**asked, **done}))
    print(f"median of what predictions are off by: {statistics.median(errors):.1%}")
    return 0


def _rows(shares: Sequence[Sequence[int]]) -> str:
    """Of the first output of each share of a stage; "-" if it is no map."""
    return "/".join(str(shape[2]) if len(shape) == 4 else "-" for shape in shares)


def faults(options: argparse.Namespace) -> int:
    """200 frames at 80 % load; a machine's processes are killed, then a link is cut."""
    for what in ("kill", "cut"):
        fault(options, what)
    return 0


def fault(options: argparse.Namespace, what: str) -> None:
    """One fault in the first third of a stream."""
    model, count = f"zoo:{options.models[0]}", options.frames or 200
    with bed_of(options) as (bed, ask):
        plain = ask({"model": model, "frames": 30})
        rate = _LOAD / plain["measured_period_s"]
        lost = bed.machines[-1]
        events: list[Event] = []
        at_s = 0.0

        def told(event: Event) -> None:
            nonlocal at_s
            events.append(event)
            if event["event"] == "answered" and event["count"] > count // 3 and not at_s:
                at_s = time.time()
                {"kill": bed.kill, "cut": bed.cut}[what](lost)

        done = ask({"model": model, "frames": count, "rate_per_s": rate}, told)
        _report_fault(what, lost, done, events, at_s)


def _report_fault(what: str, lost: str, done: Event, events: Sequence[Event], at_s: float) -> None:
    if done["event"] == "failed":
        print(f"{what} {lost}: {done['error']}")
        return
    changed = [event for event in events if event["event"] == "changed" and event["at"] > at_s]
    answers = [done["began_at"] + at for at in done["answers_at_s"]]
    first = changed[0] if changed else {"at": 0.0, "why": "nothing changed"}
    again = next((at for at in answers if at > first["at"]), 0.0)
    print(
        f"{what} {lost}: {done['answered']} answers, once each and in order, differ by "
        f"{done['worst']:.1e}; new plan in service {first['at'] - at_s:.1f} s after the fault, "
        f"next answer {again - at_s:.1f} s after it; {first['why']}"
    )


def joins(options: argparse.Namespace) -> int:
    """All machines but the best one begin; that one joins in the middle."""
    options = argparse.Namespace(**{**vars(options), "gflops": sorted(options.gflops)})
    model, count = f"zoo:{options.models[0]}", options.frames or 200
    with bed_of(options, without=1) as (bed, ask):
        late = bed.machines[-1]
        events: list[Event] = []

        def told(event: Event) -> None:
            events.append(event)
            if event["event"] == "answered" and event["count"] == 1:
                ray_nodes.start_node(bed, late, bed.driver)

        done = ask({"model": model, "frames": 2 * count}, told)
        changed = [event for event in events if event["event"] == "changed"]
        answers = [done["began_at"] + at for at in done["answers_at_s"]]
        joined = next((e for e in changed if "joined" in e["why"]), None)
        if joined is None:
            print(f"{late} did not join: {done['changes']}")
            return 1
        before = [at for at in answers if at < joined["at"]]
        after = [at for at in answers if at > joined["at"] + 3]
        rates = [(len(part) - 1) / (part[-1] - part[0]) for part in (before, after)]
        print(
            f"{late} joins: {rates[0]:.2f} frames a second before, {rates[1]:.2f} after; "
            f"differ by {done['worst']:.1e}; {joined['why']}"
        )
    return 0


def consumer(options: argparse.Namespace) -> int:
    """Answers are taken slowly now and then: frames inside and memory stay within bounds."""
    asked = {
        "model": f"zoo:{options.models[0]}",
        "frames": options.frames or 2000,
        "consume_s": 0.5,
        "credits": 4,
    }
    with cluster(options) as ask:
        done = ask(asked)
        sizes = [size / 2**20 for size in done["rss_bytes"]]
        quarter, end = sizes[len(sizes) // 4], sizes[-1]
        print(
            f"{done['answered']} answers, at most {done['most_inside']} frames inside of "
            f"{done['credits']}; the driver's memory {quarter:.0f} MiB after a quarter, "
            f"{end:.0f} MiB at the end; differ by {done['worst']:.1e}"
        )
    return 0


@contextmanager
def cluster(options: argparse.Namespace) -> Iterator[Callable[..., Event]]:
    """A cluster in a test bed; what is called to have a session there."""
    with bed_of(options) as (_, ask):
        yield ask


@contextmanager
def bed_of(
    options: argparse.Namespace, without: int = 0
) -> Iterator[tuple[Testbed, Callable[..., Event]]]:
    """The same with its test bed. ``without``: so many of the last machines have no node yet."""
    paces: Sequence[float] = options.gflops
    with Testbed(len(paces), options.mbit, options.medium) as bed:
        there = bed.machines[: len(paces) - without]
        ray_nodes.start_ray(bed, machines=there)
        settings = bed.folder / "cluster.toml"
        settings.write_text(_settings(bed.machines, paces, options.medium))
        program = bed.run(
            bed.driver,
            [
                sys.executable,
                str(_DRIVER),
                bed.environment["RAY_ADDRESS"],
                str(ray_nodes.token_file(bed)),
                str(settings),
            ],
            {"PYTHONPATH": str(_SOURCE)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        lines = map(json.loads, program.stdout or ())
        entered = next(lines, None)
        assert entered is not None, "the driver ended: its error is above"

        def ask(asked: Mapping[str, Any], told: Told = lambda event: None) -> Event:
            assert program.stdin is not None
            program.stdin.write(json.dumps(asked) + "\n")
            program.stdin.flush()
            for event in lines:
                told(event)
                if event["event"] in ("done", "failed"):
                    return event
            raise AssertionError("the driver ended: its error is above")

        yield bed, ask
        assert program.stdin is not None and program.stdout is not None
        program.stdin.close()
        program.wait(_END_S)
        program.stdout.close()


def _settings(machines: Sequence[str], gflops: Sequence[float], medium: str) -> str:
    """Capacities are stated, as the pace makes them; the network is measured."""
    cores = sorted(usable_cores())
    text = [f'[network]\nmedium = "{medium}"\n']
    for index, (name, speed) in enumerate(zip(machines, gflops, strict=True)):
        text.append(
            f'[machines.{name}]\ndevices = ["cpu:{cores[index % len(cores)]}"]\n'
            f'planner = "single"\npace_gflops = {speed}\ngflops = {speed}\n'
        )
    return "\n".join(text)


PARTS = {"periods": periods, "faults": faults, "joins": joins, "consumer": consumer}

if __name__ == "__main__":
    sys.exit(main())
