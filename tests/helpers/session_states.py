"""A session in the three states that programs can see."""

from pathlib import Path
from typing import Any

import onnxruntime

import coexec
from coexec.engines.detect import usable_cores

DEVICES = [f"cpu:{core}" for core in usable_cores()[:2]]
STATES = ["own", "plan", "cached"]
"""Requests are answered by ONNX Runtime's own session; by a plan; by a plan from the cache that
another session has made."""


def opened(state: str, model: Any, cache: Path, **words: Any) -> coexec.InferenceSession:
    """A session of ``model`` in this state; the state is checked."""
    content = model if isinstance(model, bytes | str) else model.SerializeToString()
    words = {"cache": cache, **words}
    if state == "own":
        options = words.setdefault("sess_options", onnxruntime.SessionOptions())
        options.use_deterministic_compute = True
    else:
        words = {"devices": DEVICES, "planner": "hope_greedy", **words}
    if state == "cached":
        coexec.InferenceSession(content, **words).close()
    session = coexec.InferenceSession(content, **words)
    assert session.ort_is_open == (state == "own")
    assert bool(session.devices) == (state != "own")
    return session
