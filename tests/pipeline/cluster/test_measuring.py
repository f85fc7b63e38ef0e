"""What is measured of machines and links, and what is taken as it was stated."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from coexec.costs.capacity import FLOPS_PER_MAC
from coexec.model.load import load
from coexec.pipeline.cluster.build import build
from coexec.pipeline.cluster.handles import MachineFacts
from coexec.pipeline.cluster.measuring import measured_members
from coexec.pipeline.cluster.shares import ShareModels
from coexec.pipeline.cluster.team import Member
from coexec.research.zoo import build as zoo_model

LATENCY_S, BYTES_PER_S, SHARE_S = 0.003, 1e6, 0.5


class StatedHandle:
    """A machine that takes as long as it says."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[str] = []

    async def call(self, method: str, *args: Any) -> Any:
        self.asked.append(method)
        if method == "facts":
            return MachineFacts(self.name, build(), f"host-{self.name}", 1 << 30)
        if method == "measure":
            return SHARE_S
        assert method == "measure_link"
        _, size_bytes, repeats = args
        return [LATENCY_S + size_bytes / BYTES_PER_S] * repeats


def members(stated: Mapping[str, Mapping[str, float]]) -> tuple[dict[str, Member], list[str]]:
    """Those of two machines, and what both were asked."""
    model = load(zoo_model("squeezenet"))
    handles = {name: StatedHandle(name) for name in ("a", "b")}
    work = measured_members(
        handles, model.graph, ShareModels(model), lambda facts: stated.get(facts.name, {}), {}
    )
    found = {member.name: member for member in asyncio.run(work)}
    return found, [method for handle in handles.values() for method in handle.asked]


def test_what_is_not_stated_is_measured() -> None:
    found, _ = members({})
    for member in found.values():
        assert member.bandwidth_bytes_per_s == pytest.approx(BYTES_PER_S)
        assert member.latency_s == pytest.approx(LATENCY_S, rel=0.1)
        assert member.flops_per_s > 0
        assert (member.flops_per_s * SHARE_S) % FLOPS_PER_MAC == pytest.approx(0)


def test_what_is_stated_is_not_measured() -> None:
    known = {"flops_per_s": 2e9, "bandwidth_bytes_per_s": 5e6, "latency_s": 0.25}
    found, asked = members({"a": known, "b": known})
    assert set(asked) == {"facts"}
    for member in found.values():
        assert (member.flops_per_s, member.bandwidth_bytes_per_s) == (2e9, 5e6)
        assert member.latency_s == 0.25


def test_the_latency_of_a_port_is_measured_though_its_bandwidth_is_stated() -> None:
    found, _ = members({"a": {"bandwidth_bytes_per_s": 5e6}})
    assert found["a"].bandwidth_bytes_per_s == 5e6
    assert found["b"].bandwidth_bytes_per_s == pytest.approx(BYTES_PER_S)
    for member in found.values():
        assert member.latency_s == pytest.approx(LATENCY_S, rel=0.1)
