"""A pipeline plan: stages of one model, and the part of each stage that each machine computes.

Nothing else is stored. Halos, messages and memory follow from it and the graph.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

from coexec.graph.graph import Graph, Task
from coexec.plan.plan import Provenance
from coexec.plan.schedule import TaskRegion

Exchange = Literal["leader", "neighbours"]
"""How the shares of a stage get their inputs. "leader": the leader gets all tensors of the
boundary, cuts them, and sends each share its part. "neighbours": each share gets each part directly
from the machine that has it, so only parts on other machines move."""


@dataclass(frozen=True, slots=True)
class Share:
    """Regions of a stage's outputs that one machine computes."""

    machine: str
    outputs: tuple[TaskRegion, ...]
    """The outputs of which it computes a region, each once. Shares of a stage are disjoint."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Consecutive tasks that some machines compute in parallel."""

    tasks: tuple[str, ...]
    """Names, in topological order."""
    leader: str
    """The machine in which inputs are cut and outputs are stitched."""
    shares: tuple[Share, ...]
    exchange: Exchange = "leader"

    @property
    def machines(self) -> tuple[str, ...]:
        """Machines that compute, in the order of the shares."""
        return tuple(share.machine for share in self.shares)


@dataclass(frozen=True)
class PipelinePlan:
    """Stages in the order in which a frame passes them. A machine may serve several stages."""

    model: str
    """`Graph.fingerprint` of the model that it was made for."""
    stages: tuple[Stage, ...]
    provenance: Provenance
    at_once: int | None = None
    """Maximum number of frames in flight; None: the plan sets no limit. 1 for plans in which all
    machines compute the same frame, layer after layer."""
    notes: tuple[str, ...] = ()
    """Remarks for the user, one sentence each."""

    @cached_property
    def machines(self) -> tuple[str, ...]:
        """All machines of the plan, in the order of their first stage."""
        names: dict[str, None] = {}
        for stage in self.stages:
            names |= dict.fromkeys((stage.leader, *stage.machines))
        return tuple(names)

    def stages_of(self, machine: str) -> tuple[int, ...]:
        """Indices of the stages that a machine leads or has a share of."""
        stages = enumerate(self.stages)
        return tuple(i for i, stage in stages if machine in (stage.leader, *stage.machines))

    def to_json(self) -> str:
        """JSON text that a person can read."""
        head = {
            "model": self.model,
            "provenance": asdict(self.provenance),
            "at_once": self.at_once,
            "notes": self.notes,
        }
        return json.dumps(head | {"stages": [_row(s) for s in self.stages]}, indent=1, default=str)


def boundary(graph: Graph, stages: Sequence[Stage], index: int) -> tuple[str, ...]:
    """Tensors at the begin of the stage ``index``: inputs of the model and outputs of earlier
    stages that this stage or a later one reads, or that are outputs of the model.

    After the last stage (``index`` is the number of stages) these are the outputs of the model.
    """
    before = {name for stage in stages[:index] for name in stage.tasks}
    made = [*graph.inputs, *(n for t in graph.tasks if t.name in before for n in t.outputs)]
    names = []
    for name in made:
        later = any(reader.name not in before for reader in graph.readers[name])
        if later or (name in graph.outputs and name not in graph.inputs):
            names.append(name)
    return tuple(names)


def stage_outputs(graph: Graph, stages: Sequence[Stage], index: int) -> tuple[str, ...]:
    """Tensors of the stage ``index`` that later stages read, or that are outputs of the model."""
    needed = set(boundary(graph, stages, index + 1))
    tasks: list[Task] = [graph.task[name] for name in stages[index].tasks]
    return tuple(name for task in tasks for name in task.outputs if name in needed)


def _row(stage: Stage) -> dict[str, Any]:
    shares = [
        {
            "machine": share.machine,
            "outputs": [
                {"tensor": name, "start": region.start, "stop": region.stop}
                for name, region in share.outputs
            ],
        }
        for share in stage.shares
    ]
    return {
        "leader": stage.leader,
        "exchange": stage.exchange,
        "tasks": stage.tasks,
        "shares": shares,
    }
