"""The user's program in a test bed: it runs in the first machine, and is told what to do and tells
what happens by lines of JSON.

    cluster_driver.py ADDRESS TOKEN_FILE SETTINGS.toml

A line asks for a session ({"model", "planner", "frames", ...}); events and results come back.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from coexec.cache import Cache
from coexec.errors import CoexecError
from coexec.model.inputs import random_inputs
from coexec.pipeline.cluster.cluster import Cluster
from coexec.pipeline.cluster.session import ClusterSession
from coexec.selection.user_model import UserModel

__all__ = ["main"]

_TOLD = os.fdopen(os.dup(1), "w")
"""What this program tells; whatever Ray prints goes where errors go."""
_DIFFERENT = 4
"""Frames that are not alike; they come in turn."""


def main() -> None:
    address, token, settings = sys.argv[1:]
    os.dup2(2, 1)
    with Cluster(settings, address=address, token=token) as cluster:
        _say({"event": "entered", "machines": cluster.machines})
        for line in sys.stdin:
            asked = json.loads(line)
            try:
                _say({"event": "done"} | _session(cluster, asked))
            except CoexecError as error:
                _say({"event": "failed", "error": str(error)})


def _session(cluster: Cluster, asked: dict[str, Any]) -> dict[str, Any]:
    given = UserModel(asked["model"], {}, Cache())
    frames = [random_inputs(given.model.graph, seed) for seed in range(_DIFFERENT)]
    references = [given.reference(feeds) for feeds in frames]
    start = time.perf_counter()
    with cluster.session(
        asked["model"],
        planner=asked.get("planner", "pico"),
        credits=asked.get("credits"),
        deadline_s=120.0,
    ) as session:
        _say({"event": "ready", "after_s": time.perf_counter() - start} | _about(session))
        return _stream(session, frames, references, asked)


def _about(session: ClusterSession) -> dict[str, Any]:
    status = session.status()
    return {
        "period_s": status.predicted_period_s,
        "latency_s": status.predicted_latency_s,
        "stages": len(session.plan.stages),
        "rows": [
            [share.outputs[0][1].shape for share in stage.shares if share.outputs]
            for stage in session.plan.stages
        ],
        "machines": {m.name: [m.flops_per_s, m.bandwidth_bytes_per_s] for m in status.machines},
    }


def _stream(
    session: ClusterSession, frames: list[Any], references: list[Any], asked: dict[str, Any]
) -> dict[str, Any]:
    count, rate = asked["frames"], asked.get("rate_per_s")
    answered: list[float] = []
    latencies: list[float] = []
    worst = 0.0
    begin = time.perf_counter()

    def coming() -> Any:
        for index in range(count):
            if rate:
                time.sleep(max(0.0, begin + index / rate - time.perf_counter()))
            yield frames[index % _DIFFERENT]

    watch = threading.Event()
    threading.Thread(target=_watch, args=(session, watch, begin), daemon=True).start()
    rss = []
    for index, outputs in enumerate(session.map(coming())):
        now = time.perf_counter() - begin
        answered.append(now)
        for name, wanted in references[index % _DIFFERENT].items():
            scale = max(1e-6, float(np.abs(wanted).max()))
            worst = max(worst, float(np.abs(outputs[name] - wanted).max()) / scale)
        if asked.get("consume_s") and index % 10 == 0:
            time.sleep(asked["consume_s"])
        if index % max(1, count // 20) == 0:
            rss.append(_rss())
            _say({"event": "answered", "count": index + 1, "at_s": now})
    watch.set()
    status = session.status()
    middle = sorted(answered)[len(answered) // 4 : 3 * len(answered) // 4 + 1]
    period = (middle[-1] - middle[0]) / (len(middle) - 1) if len(middle) > 1 else answered[-1]
    return {
        "measured_period_s": period,
        "worst": worst,
        "answered": len(answered),
        "most_inside": status.most_inside,
        "credits": status.credits,
        "changes": status.changes,
        "answers_at_s": answered,
        "latencies_s": latencies,
        "rss_bytes": rss,
        "began_at": time.time() - (time.perf_counter() - begin),
        **_about(session),
        "computed": {m.name: [m.shares, m.busy_s, m.sent_bytes] for m in status.machines},
    }


def _watch(session: ClusterSession, end: threading.Event, begin: float) -> None:
    known = len(session.status().changes)
    while not end.wait(0.05):
        changes = session.status().changes
        if len(changes) > known:
            known = len(changes)
            _say({"event": "changed", "at": time.time(), "why": changes[-1]})


def _rss() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def _say(what: dict[str, Any]) -> None:
    print(json.dumps(what), file=_TOLD, flush=True)


if __name__ == "__main__":
    main()
