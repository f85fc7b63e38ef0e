"""Helpers for tests of the cache: a small model, its outputs, and damage to a cache."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import coexec
from coexec.cache import Cache
from coexec.engines.detect import usable_cores
from coexec.model.difference import worst_difference
from tests.helpers.small_models import branches

DEVICES = [f"cpu:{core}" for core in usable_cores()[:2]]
_TASKS = coexec.load(branches()).graph.tasks
PINS = dict(zip((_TASKS[0].name, _TASKS[-1].name), DEVICES, strict=False))
FEEDS = {"x": np.random.default_rng(0).standard_normal((1, 3, 20, 20)).astype(np.float32)}


def save_model(folder: Path) -> Path:
    """The path of a file with a small model, which is written."""
    path = folder / "m.onnx"
    onnx.save(branches(), str(path))
    return path


def answer(model: Any, cache: Path | Cache, planner: str = "heft", **words: Any) -> list[Any]:
    """The outputs of a session. Its plan has a task to compile on each device, whatever times are
    measured."""
    if planner != "auto":
        words.setdefault("pins", PINS)
    with coexec.InferenceSession(
        model, devices=DEVICES, planner=planner, cache=cache, background=False, **words
    ) as session:
        return session.run(None, FEEDS)


def same(found: list[Any], expected: list[Any]) -> bool:
    return all(worst_difference(a, b) < 1e-5 for a, b in zip(found, expected, strict=True))


def files(cache: Path) -> list[Path]:
    return sorted(p for p in cache.rglob("*") if p.is_file())


def flip(file: Path, place: int) -> None:
    """Flip one bit of a file and restore the times of the file."""
    stat = file.stat()
    content = bytearray(file.read_bytes())
    content[place] ^= 1 << place % 8
    file.write_bytes(bytes(content))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
