"""What a message costs by a call of a Ray actor, beside the bare wire.

    python benchmarks/testbed/ray_links.py                          # seven minutes
    python benchmarks/testbed/ray_links.py --settings default inline --sizes 200000 1500000
    python benchmarks/testbed/ray_links.py --medium shared --json

Two machines of a test bed; messages are numpy arrays. Each setting is a Ray cluster of its own,
begun after the wire was measured. Medians: `ask`, a call with a message until its short answer is
there; `answer`, a short call that returns a message; `stream`, from message to message with four
calls under way. `wire` is a message over plain TCP until one byte comes back.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import ray_nodes
from bandwidth import message_s
from bed import MEDIA, Testbed
from bed_probe import why_not

from coexec.errors import CoexecError, ExecutionError

SIZES = (8, 10_000, 60_000, 100_000, 110_000, 200_000, 500_000, 1_500_000, 4_000_000)
INLINE = {
    "RAY_max_direct_call_object_size": str(64 << 20),
    "RAY_task_rpc_inlined_bytes_limit": str(128 << 20),
}
"""Messages up to the first size (by default 100 KiB) travel in the call itself, larger ones by the
object stores of both nodes. The second (by default 10 MiB) is for all messages of a call together.
"""
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "default": {},
    "inline": INLINE,
    "inline-2m": {"RAY_max_direct_call_object_size": str(2 << 20)},
    "inline-not-nice": {**INLINE, "RAY_worker_niceness": "0"},
    "inline-no-reports": {
        **INLINE,
        "RAY_task_events_report_interval_ms": "0",
        "RAY_enable_metrics_collection": "0",
    },
    "chunks-64k": {"RAY_object_manager_default_chunk_size": str(64 << 10)},
    "chunks-512k": {"RAY_object_manager_default_chunk_size": str(512 << 10)},
    "store": {"RAY_max_direct_call_object_size": "0"},
}
"""Environment variables of all Ray processes."""
Row = dict[str, float]


def main() -> int:
    options = _arguments()
    if reason := why_not(options.medium):
        print(f"ray_links.py: skipped, {reason}", file=sys.stderr)
        return 1
    try:
        for name in options.settings:
            rows = list(measured(options, SETTINGS[name]))
            _show(name, SETTINGS[name], rows, options.json)
    except CoexecError as error:
        print(f"ray_links.py: {error}", file=sys.stderr)
        return 2
    return 0


def measured(options: argparse.Namespace, settings: Mapping[str, str]) -> Iterator[Row]:
    """One row for each size, times in seconds."""
    with Testbed(2, options.mbit, options.medium) as bed:
        wires_s = message_s(bed, "m0", "m1", options.sizes, options.rounds)
        ray_nodes.start_ray(bed, settings=settings)
        program = str(Path(__file__).with_name("ray_end.py"))
        words = [sys.executable, program, "m1", str(options.rounds), *map(str, options.sizes)]
        asking = bed.run("m0", words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        out, said = asking.communicate()
        if asking.returncode:
            reason = (said.strip().splitlines() or ["nothing"])[-1]
            raise ExecutionError(f"the driver in m0 ended with {asking.returncode}; said: {reason}")
    for wire_s, line in zip(wires_s, out.splitlines(), strict=True):
        yield {"wire": wire_s, **json.loads(line)}


def _show(name: str, settings: Mapping[str, str], rows: Sequence[Row], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"setting": name, "environment": settings, "rows": rows}), flush=True)
        return
    print(f"\n{name}: {' '.join(f'{k}={v}' for k, v in settings.items()) or 'as Ray comes'}")
    print(f"{'bytes':>9} {'wire':>9} {'ask':>9} {'answer':>9} {'stream':>9}   ms  ask / wire")
    for row in rows:
        times = " ".join(f"{1e3 * row[key]:9.2f}" for key in ("wire", "ask", "answer", "stream"))
        print(f"{row['bytes']:9} {times} {row['ask'] / row['wire']:15.2f}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=[*SETTINGS])
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="of messages, in bytes")
    parser.add_argument("--rounds", type=int, default=11, help="messages of each size")
    parser.add_argument("--mbit", type=float, default=50.0)
    parser.add_argument("--medium", choices=MEDIA, default="ports")
    parser.add_argument("--json", action="store_true", help="a setting as JSON in each line")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
