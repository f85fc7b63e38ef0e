"""The cache is never wrong: damage, replaced weights, other processors."""

import os
import random
import shutil
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import coexec
from coexec.arrays import address_of
from coexec.cache import Cache, rest
from coexec.engines import detect, registry
from coexec.errors import CacheWarning, StoreError
from coexec.selection.user_model import UserModel
from tests.helpers.harmed import DEVICES, answer, flip, same
from tests.helpers.small_models import branches

ENTRIES = ("models/*", "lowered/*", "plans/*", "choices/*", "sources/*")


@pytest.mark.sampled(4)
@pytest.mark.usefixtures("quick_choice")  # a damaged choice is made again
@pytest.mark.parametrize("kind", [*ENTRIES, "weights/*/*", "profiles*"])
def test_a_flipped_bit_is_noticed(
    kind: str, model: Path, copy: Path, expected: list[Any], tmp_path: Path
) -> None:
    rng = random.Random(kind)
    if kind in ("models/*", "lowered/*"):
        shutil.rmtree(copy / "plans")  # else they are not read
    elif kind == "profiles*":
        for other in ("plans", "choices"):
            shutil.rmtree(copy / other)
    for file in rng.sample(found := sorted(copy.glob(kind)), min(4, len(found))):
        for place in rng.sample(range(file.stat().st_size), 2):
            again = Path(shutil.copytree(copy, tmp_path / "again"))
            flip(again / file.relative_to(copy), place)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CacheWarning)
                for planner in ("heft", "auto") if kind == "choices/*" else ("heft",):
                    assert same(answer(model, again, planner), expected), f"{file} at {place}"
            shutil.rmtree(again)


def test_damage_is_said_once_and_repaired(model: Path, copy: Path, expected: list[Any]) -> None:
    for file in copy.glob("weights/*/*"):
        flip(file, 100)
    with pytest.warns(CacheWarning, match=r"was damaged.*--cache DIR") as said:
        assert same(answer(model, copy), expected)
    assert len(said) == 1
    assert same(answer(model, copy), expected)


def external(path: Path, scale: float = 1.0) -> None:
    """The model with its weights in a file beside it."""
    proto = branches()
    for tensor in proto.graph.initializer:
        if tensor.name == "b0.b.w":
            values = onnx.numpy_helper.to_array(tensor) * scale
            tensor.CopyFrom(onnx.numpy_helper.from_array(values.astype(np.float32), tensor.name))
    onnx.save(proto, str(path), save_as_external_data=True, location="w.bin", size_threshold=64)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("pause_s", [0.0, 2.1])
def test_replaced_external_weights_are_noticed(
    pause_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "m.onnx", tmp_path / "other"
    other.mkdir()
    external(path)
    external(other / "m.onnx", scale=2.0)
    monkeypatch.chdir(tmp_path)
    time.sleep(pause_s)  # the cache trusts times or reads the files again, according to their age
    first = answer(path, tmp_path / "c")
    size = (tmp_path / "w.bin").stat().st_size
    (tmp_path / "w.bin").write_bytes((other / "w.bin").read_bytes())
    assert (tmp_path / "w.bin").stat().st_size == size
    second = answer(path, tmp_path / "c")
    assert not same(second, first)
    assert same(second, answer(other / "m.onnx", tmp_path / "other-cache"))


def test_weights_that_keep_their_times_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "m.onnx"
    external(path)
    data = tmp_path / "w.bin"
    os.utime(data, (1e9, 1e9))
    time.sleep(2.1)
    first = answer(path, tmp_path / "c")
    content = bytearray(data.read_bytes())
    for place in range(3, len(content), 4):
        content[place] ^= 0x80
    data.write_bytes(bytes(content))
    os.utime(data, (1e9, 1e9))
    assert not same(answer(path, tmp_path / "c"), first)


def test_a_touched_or_copied_model_is_not_made_again(
    model: Path, copy: Path, expected: list[Any], tmp_path: Path
) -> None:
    before = {kind: len(list(copy.glob(kind))) for kind in ("models/*", "lowered/*", "plans/*")}
    again = tmp_path / "copied.onnx"
    shutil.copy(model, again)
    os.utime(again)
    for path in (again, model):
        assert same(answer(path, copy), expected)
    assert before == {kind: len(list(copy.glob(kind))) for kind in before}


def test_a_model_that_changes_while_it_is_read(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: list[Any]
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(branches(width=2), str(path))
    load = UserModel._load

    def late(self: UserModel, **how: Any) -> Any:
        shutil.copy(model, path)  # between the digest and the reader
        return load(self, **how)

    monkeypatch.setattr(UserModel, "_load", late)
    assert same(answer(path, tmp_path / "c"), expected)
    monkeypatch.undo()
    onnx.save(branches(width=2), str(path))
    with coexec.InferenceSession(path, devices=DEVICES, planner="heft", cache=tmp_path / "c") as s:
        assert s.get_outputs()[0].shape == [1, 32]


def test_processors_with_other_features_share_no_lowered_model(
    model: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = registry.describe(DEVICES[0])
    before = {kind: len(list(copy.glob(kind))) for kind in ("lowered/*", "plans/*")}
    monkeypatch.setattr(detect, "processor_features", lambda: "12345678")
    there = registry.describe(DEVICES[0])
    assert here.key != there.key
    assert here.features and there.features == "12345678"
    answer(model, copy)
    made = {kind: len(list(copy.glob(kind))) - count for kind, count in before.items()}
    assert made == {"lowered/*": 2, "plans/*": 1}, "lowered for the profiler, and for the plan"


def test_features_have_a_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = detect.processor_features.__wrapped__
    own = plain()
    assert len(own) == 8 and detect.features()
    monkeypatch.setattr(detect, "import_module", lambda name: object())  # as if numpy had moved it
    monkeypatch.setattr(detect, "features", detect.features.__wrapped__)
    assert detect.features() == ()
    assert len(plain()) == 8 and plain() != own


def test_a_weight_is_mapped_once(tmp_path: Path) -> None:
    """Models, plans and engines of a process share one mapping; the next user of a weight whose
    pages were given back reads it again."""
    values = np.arange(1 << 16, dtype=np.float32)
    cache = Cache(tmp_path)
    (name,) = cache.weights.add([values])
    first, second = (Cache(tmp_path).weights.fetch([name])[name] for _ in range(2))
    assert address_of(first) == address_of(second)
    for given in (None, [first[64:].view(np.float32)], [values]):
        rest(given)
        assert np.array_equal(second.view(np.float32), values)
    file = next(tmp_path.glob("weights/*/*"))
    file.unlink()
    file.write_bytes(bytes(values.nbytes))  # another file in its place is not the one mapped
    with pytest.warns(CacheWarning, match="damaged"), pytest.raises(StoreError):
        cache.weights.fetch([name])
    assert np.array_equal(first.view(np.float32), values)
