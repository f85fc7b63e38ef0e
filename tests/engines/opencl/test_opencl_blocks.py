"""The engine's option `block`: channels that lie side by side on CPU cores."""

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.small_models import branches

pytest.importorskip("pyopencl")

from coexec.engines.kernels.architecture import BlockWidth, blocks_on_cores
from coexec.engines.registry import check_options, describe, open_devices
from coexec.errors import UsageError
from coexec.model.difference import worst_difference
from coexec.model.inputs import random_inputs
from coexec.model.load import load
from coexec.model.reference_session import plain_session
from coexec.session import InferenceSession
from tests.helpers.needs_opencl import opencl_found, opencl_options
from tests.helpers.opencl_programs import unoptimised

WIDTHS = ("4", "8", "16")


@pytest.mark.parametrize(
    ("vector", "registers", "width", "expected"),
    [
        (16, 32, "auto", (16, 32)),
        (16, 32, "8", (8, 32)),
        (16, 32, "4", (4, 32)),
        (8, 16, "auto", (8, 16)),
        (8, 16, "16", (16, 8)),
        (8, 16, "4", (4, 16)),
        (4, 32, "auto", (4, 32)),
        (4, 32, "16", (16, 8)),
        (4, 16, "auto", (4, 16)),
        (4, 16, "16", (16, 4)),
        (1, 32, "auto", (4, 32)),
    ],
)
def test_a_block_takes_registers(
    vector: int, registers: int, width: BlockWidth, expected: tuple[int, int]
) -> None:
    """A vector register holds ``vector`` floats; expected are a block and how many fit."""
    assert blocks_on_cores(vector, registers, width) == expected


@pytest.mark.sampled(6)
@pytest.mark.parametrize("memory", ["auto", "own"])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_session_computes_with_blocks_of_any_width(
    width: str, memory: str, gpu: str, tmp_path: Path
) -> None:
    proto = branches(channels=18)
    feeds = random_inputs(load(proto).graph)
    options: Any = opencl_options(block=width, memory=memory)
    with (
        unoptimised(),
        InferenceSession(
            proto, devices=[gpu], planner="single", cache=tmp_path, engine_options=options
        ) as session,
    ):
        found = session.run(None, feeds)
    for array, expected in zip(found, plain_session(proto).run(None, feeds), strict=True):
        assert worst_difference(array, expected) < 1e-4


def test_kernels_and_tensors_lie_in_blocks_of_the_width(gpu: str) -> None:
    for width in WIDTHS:
        (device,) = open_devices([gpu], opencl_options(block=width))
        arch = device.engine.arch  # type: ignore[attr-defined]
        assert (device.engine.dialect.block, arch.block) == (int(width), int(width))
        device.close()


def test_profiles_are_of_one_width(gpu: str) -> None:
    """The width is part of the engine's version; the processor's own has one name."""
    versions = {w: describe(gpu, opencl_options(block=w)).engine.version for w in WIDTHS}
    assert len(set(versions.values())) == len(WIDTHS)
    own = str(opencl_found().architecture().block)
    assert describe(gpu, opencl_options(block="auto")).engine.version == versions[own]


def test_other_widths_are_refused() -> None:
    with pytest.raises(UsageError, match=r"opencl\.block='6': it is one of auto, 4, 8, 16"):
        check_options({"opencl": {"block": "6"}})
