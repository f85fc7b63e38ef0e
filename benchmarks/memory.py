"""Memory of a program with a plan, and of planning, against ONNX Runtime with the same model.

Each is a process of its own with its own cache: ONNX Runtime's session; a session with the plan of
one engine on all cores; one with a plan of planner codl on two clusters; and `coexec optimize`. The
peak is the largest resident memory (VmHWM); "now" is resident after five requests, of which
"private" belongs to the process alone and the other pages are mapped from files. Of planning, the
peak is of the largest process, and "now" is the largest sum over all of its processes, with shared
pages counted once (PSS). The first start of a plan compares it with ONNX Runtime.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from common import arguments, show, two_cores
from model_files import model_file

from coexec.engines.names import whole_cpu

_PROGRAM = """
import json, re, sys
import onnxruntime
path, plan, cache = sys.argv[1:]
if plan:
    import coexec
    session = coexec.InferenceSession(path, plan=plan, cache=cache)
else:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
import numpy as np
feeds = {
    i.name: np.zeros([d if isinstance(d, int) else 1 for d in i.shape],
                     {"tensor(float)": "f4", "tensor(int64)": "i8", "tensor(int32)": "i4"}[i.type])
    for i in session.get_inputs()
}
for _ in range(5):
    session.run(None, feeds)
if plan and session.degraded:
    sys.exit(session.degraded)
text = open("/proc/self/status").read() + open("/proc/self/smaps_rollup").read()
print(json.dumps({k: 1024 * int(re.search(k + r":\\s*(\\d+)", text)[1])
                  for k in ("VmHWM", "VmRSS", "Anonymous")}))
"""
_MB = 1 << 20
_POLL_S = 0.1


def _session(path: str, plan: str, cache: str) -> dict[str, Any]:
    """The memory of a process that makes a session and answers five requests."""
    words = [sys.executable, "-c", _PROGRAM, path, plan, cache]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        return {"why": (done.stderr.strip().splitlines() or ["it crashed"])[-1][:80]}
    memory = json.loads(done.stdout.splitlines()[-1])
    peak, now, private = (memory[key] for key in ("VmHWM", "VmRSS", "Anonymous"))
    return {"peak, MB": peak // _MB, "now, MB": now // _MB, "private, MB": private // _MB}


def _planning(path: str, cache: str, seconds: float) -> dict[str, Any]:
    """The largest memory of the processes of ``coexec optimize``."""
    words = [sys.executable, "-m", "coexec", "optimize", path, "--time", str(seconds)]
    words += ["--cache", cache, "--output", str(Path(cache) / "plan.json")]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    total = largest = private = 0
    while process.poll() is None:
        memories = [_memory(pid) for pid in _tree(process.pid)]
        total = max(total, sum(m.get("Pss", 0) for m in memories))
        private = max(private, sum(m.get("Anonymous", 0) for m in memories))
        largest = max([largest, *(m.get("VmHWM", 0) for m in memories)])
        time.sleep(_POLL_S)
    row = {"peak, MB": largest // _MB, "now, MB": total // _MB, "private, MB": private // _MB}
    return row if process.returncode == 0 else row | {"why": f"it ended with {process.returncode}"}


def _memory(pid: int) -> dict[str, int]:
    """Figures of /proc for a process, in bytes; none if it has ended."""
    try:
        folder = Path(f"/proc/{pid}")
        text = (folder / "status").read_text() + (folder / "smaps_rollup").read_text()
    except OSError:
        return {}
    return {key: 1024 * int(kb) for key, kb in re.findall(r"^(\w+):\s+(\d+) kB", text, re.M)}


def _tree(pid: int) -> Iterator[int]:
    """A process and all processes that it has started."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue
        for child in children:
            yield from _tree(int(child))


def _rows(path: str, args: Any) -> list[dict[str, Any]]:
    rows = [{"of": "ONNX Runtime"} | _session(path, "", "")]
    plans = {engine: (f"{whole_cpu()}/{engine}", "single") for engine in ("cpp", "openvino")}
    plans["codl on two clusters"] = ",".join(two_cores()), "codl"
    with tempfile.TemporaryDirectory(prefix="coexec-memory-") as folder:
        cache = args.cache or folder
        for number, (title, (devices, planner)) in enumerate(plans.items()):
            file = str(Path(folder) / f"{number}.json")
            words = ["plan", path, "--devices", devices, "--planner", planner, "--output", file]
            command = [sys.executable, "-m", "coexec", *words, "--cache", cache]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                rows.append({"of": title, "why": (done.stderr.strip().splitlines() or [""])[-1]})
                continue
            rows.append({"of": f"{title}, first start"} | _session(path, file, cache))
            rows.append({"of": title} | _session(path, file, cache))
        rows.append({"of": "planning, 60 s"} | _planning(path, str(Path(folder) / "new"), 60))
    return rows


def main() -> None:
    args = arguments(__doc__ or "", ["squeezenet", "inception_v3"])
    with tempfile.TemporaryDirectory() as folder:
        for name in args.models:
            path = str(model_file(name, Path(folder)))
            rows = _rows(path, args)
            show(f"memory of {Path(name).stem}", _with_ratios(rows), args.json)


def _with_ratios(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each row with its peak as a multiple of that of ONNX Runtime, the first row."""
    base = rows[0].get("peak, MB")
    return [
        row | {"peak ratio": row["peak, MB"] / base if base and "peak, MB" in row else ""}
        for row in rows
    ]


if __name__ == "__main__":
    main()
