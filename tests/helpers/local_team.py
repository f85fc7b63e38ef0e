"""Machines of a cluster as objects of this process, which can be made to fail."""

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from coexec.engines.detect import usable_cores
from coexec.errors import ClosedError
from coexec.model.load import load
from coexec.model.model import Model
from coexec.pipeline.cluster.handles import MachineLostError
from coexec.pipeline.cluster.machine import Machine, MachineOptions
from coexec.pipeline.cluster.session import ClusterSession
from coexec.pipeline.cluster.supervision import Limits

QUICK = Limits(silence_s=1.5, message_s=0.5, look_s=0.05, join_s=0.2, rest_s=0.5)
_FOR_EVER_S = 3600.0


class LocalHandle:
    """A machine of this process."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.dead = False
        """Each call raises MachineLostError."""
        self.silent = False
        """A call gets no answer, as if the link was cut."""
        self.bytes_per_s: float | None = None
        """Bandwidth of its port for received arrays; None: no delay."""

    async def call(self, method: str, *args: Any) -> Any:
        """See `MachineHandle.call`."""
        if self.bytes_per_s is not None and method in ("receive", "take"):
            arrays = args[-1] if method == "receive" else [args[0]]
            await asyncio.sleep(sum(array.nbytes for array in arrays) / self.bytes_per_s)
        await self._reach()
        answer = await getattr(self.machine, method)(*args)
        await self._reach()
        return answer

    async def _reach(self) -> None:
        if self.silent:
            await asyncio.sleep(_FOR_EVER_S)
        if self.dead:
            raise MachineLostError("it has died")


class LocalTeam:
    """The machines of one session; machines may be added while the session exists."""

    def __init__(self, paces_flops_per_s: Mapping[str, float]) -> None:
        """
        Args:
            paces_flops_per_s: speed of each machine in FLOP/s; all use the same core.
        """
        self.paces = dict(paces_flops_per_s)
        self.handles: dict[str, LocalHandle] = {}
        self.dismissed: list[str] = []
        self.ended = False
        """Whether the cluster has ended."""

    async def hire(self) -> Mapping[str, LocalHandle]:
        """See `Team.hire`."""
        if self.ended:
            raise ClosedError("the head is gone")
        core = f"cpu:{min(usable_cores())}"
        new_handles = {
            name: LocalHandle(Machine(name, MachineOptions([core], "single", pace)))
            for name, pace in self.paces.items()
            if name not in self.handles and name not in self.dismissed
        }
        self.handles |= new_handles
        return new_handles

    @property
    def door(self) -> None:
        """See `Team.door`."""
        return None

    async def dismiss(self, name: str) -> None:
        """See `Team.dismiss`."""
        handle = self.handles.pop(name)
        handle.dead = True
        self.dismissed.append(name)
        await handle.machine.close()


def local_session(
    model: Model, team: LocalTeam, limits: Limits = QUICK, latency_s: float = 0.0, **options: Any
) -> ClusterSession:
    """A session on a team. Speeds and links are stated, so nothing is measured."""

    def stated(facts: Any) -> Mapping[str, float]:
        pace = team.paces[facts.name]
        return {"flops_per_s": pace, "bandwidth_bytes_per_s": 1e8, "latency_s": latency_s}

    return ClusterSession(model, team, stated, limits=limits, **options)


def convolutions(count: int) -> Model:
    """``count`` convolutions of 24 rows, 0.5 MFLOP each, from "x" to "t" and the last index."""
    rng = np.random.default_rng(0)
    nodes, weights, name = [], [], "x"
    for index in range(count):
        weight = rng.standard_normal((8, 8, 3, 3), dtype=np.float32) / 8
        weights.append(numpy_helper.from_array(weight, f"w{index}"))
        nodes.append(helper.make_node("Conv", [name, f"w{index}"], [f"t{index}"], pads=[1] * 4))
        name = f"t{index}"
    shape = [1, 8, 24, 18]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("x", name)]
    graph = helper.make_graph(nodes, "convolutions", values[:1], values[1:], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return load(made, name="convolutions")
