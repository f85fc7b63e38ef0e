"""Kernels for processors with other vectors, against ONNX Runtime: NEON under an emulator, AVX2
and SSE."""

from pathlib import Path

import pytest

from coexec.engines.cpp.device import architecture
from coexec.engines.cpp.options import CppOptions
from coexec.engines.kernels import base
from coexec.model.difference import worst_difference
from coexec.model.inputs import random_inputs
from coexec.model.load import load
from coexec.model.reference_session import plain_session
from tests.helpers.gpu_networks import module_of
from tests.helpers.instruction_sets import SETS, run_on_target, target_of
from tests.helpers.kernel_networks import NAMES, kernel_network


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        (("AVX", "AVX2", "AVX512F"), (16, 32)),
        (("AVX", "AVX2"), (8, 16)),
        (("SSE42",), (4, 16)),
        (("ASIMD", "NEON"), (4, 32)),
        (("NEON",), (4, 16)),  # of 32 bits
        ((), (4, 16)),
    ],
)
def test_a_processor_has_so_many_registers_of_a_block(
    features: tuple[str, ...], expected: tuple[int, int]
) -> None:
    arch = architecture(1, CppOptions(), features)
    assert (arch.block, arch.registers) == expected


@pytest.mark.sampled(len(NAMES))
@pytest.mark.parametrize("network", NAMES)
@pytest.mark.parametrize("instructions", SETS)
def test_a_network_is_right(
    instructions: str, network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "_SMALL", 256)  # these networks have no larger tensors
    target = target_of(instructions)
    proto = kernel_network(network)
    model = load(proto)
    feeds = random_inputs(model.graph)
    made = run_on_target(target, module_of(model), feeds, tmp_path)
    # One network loses 0.023 in bf16, also where each product is one of float32.
    names, allowed = model.graph.outputs, 3e-2 if target.arch.half else 1e-5
    for name, expected in zip(names, plain_session(proto).run(list(names), feeds), strict=True):
        assert worst_difference(made[name], expected) < allowed
