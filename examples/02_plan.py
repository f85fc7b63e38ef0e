"""Plan a small graph by hand-made costs: no model, no device, no clock."""

from coexec.costs.table import CostTable
from coexec.graph.graph import Graph, Operator, Task, Tensor
from coexec.hardware.hardware import Device, EngineInfo, Link, System
from coexec.plan.derive import derive
from coexec.planners import PLANNERS
from coexec.timing.simulate import simulate
from coexec.units import format_seconds

# Two branches of different length between a stem and a head; each task reads the ones named.
READS = {
    "stem": ["x"],
    "left1": ["stem"],
    "left2": ["left1"],
    "right": ["stem"],
    "head": ["left2", "right"],
}


def task(name: str) -> Task:
    reads = tuple(READS[name])
    operator = Operator("Sum", reads, (name,), attributes={}, constants={})
    return Task(name, (operator,), reads, (), (name,), signature=name, macs=0)


tensors = {name: Tensor(name, (1, 64, 56, 56), "float32") for name in ["x", *READS]}
graph = Graph("two branches", tensors, tuple(map(task, READS)), ("x",), ("head",))

cpu = Device("cpu:0-3", "cpu", EngineInfo("onnxruntime"), cores=(0, 1, 2, 3))
gpu = Device("gpu:0", "gpu", EngineInfo("opencl", memory="opencl on gpu:0"))

# Seconds of each task by device: the GPU is faster, but not for everything.
cost = CostTable(
    {
        cpu.place: {
            "stem": 4e-3, "left1": 6e-3, "left2": 5e-3, "right": 8e-3, "head": 1e-3,
        },
        gpu.place: {
            "stem": 3e-3, "left1": 3e-3, "left2": 4e-3, "right": 7e-3, "head": 2e-3,
        },
    }
)  # fmt: skip
links = (
    Link(cpu.place, gpu.place, sync_latency_s=50e-6, bandwidth_bytes_per_s=8e9),
    Link(gpu.place, cpu.place, sync_latency_s=50e-6, bandwidth_bytes_per_s=8e9),
)
system = System((cpu, gpu), links)

for name in ("single", "heft", "hope_greedy", "exhaustive"):
    plan = PLANNERS[name](graph, cost, system)
    trace = simulate(derive(plan, graph), cost, system)
    print(f"{name:12} {format_seconds(trace.makespan_s)}")
    for device, pieces in plan.order.items():
        print(f"  {device:8} {' '.join(piece.task for piece in pieces) or 'nothing'}")
