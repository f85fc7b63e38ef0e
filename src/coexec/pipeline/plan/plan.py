"""A pipeline plan: stages of one model, and the part of each stage that each machine computes.

Nothing else is stored. Halos, messages and memory follow from it and the graph.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal, Self

from coexec.errors import PlanError
from coexec.graph.graph import Graph, Task
from coexec.graph.region import Region
from coexec.plan.plan import Provenance
from coexec.plan.schedule import TaskRegion

__all__ = ["Exchange", "PipelinePlan", "Share", "Stage", "boundary", "stage_outputs"]

_FORMAT = 1
"""Version of the format of plan files."""

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

    def to_json(self) -> str:
        """JSON text that a person can read and edit; `from_json` reads it back."""
        head = {
            "format": _FORMAT,
            "model": self.model,
            "provenance": asdict(self.provenance),
            "at_once": self.at_once,
            "notes": self.notes,
        }
        return json.dumps(head | {"stages": [_row(s) for s in self.stages]}, indent=1, default=str)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverse of `to_json`.

        Raises:
            PlanError: the text is no pipeline plan, or has another format.
        """
        try:
            data = json.loads(text)
            if data["format"] != _FORMAT:
                raise PlanError(
                    f"the pipeline plan has format {data['format']!r}, this version "
                    f"reads {_FORMAT}; plan again"
                )
            stages = tuple(_stage(row) for row in data["stages"])
            return cls(
                str(data["model"]),
                stages,
                Provenance(**data["provenance"]),
                data["at_once"],
                tuple(map(str, data["notes"])),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, PlanError):
                raise
            raise PlanError(
                f"this is not a pipeline plan: {type(error).__name__}: {error}; plan again"
            ) from None


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


def _stage(row: Any) -> Stage:
    if row["exchange"] not in ("leader", "neighbours"):
        raise ValueError(f"the exchange {row['exchange']!r} is neither leader nor neighbours")
    shares = tuple(
        Share(str(share["machine"]), tuple(_part(part) for part in share["outputs"]))
        for share in row["shares"]
    )
    return Stage(tuple(map(str, row["tasks"])), str(row["leader"]), shares, row["exchange"])


def _part(row: Any) -> TaskRegion:
    start, stop = tuple(map(int, row["start"])), tuple(map(int, row["stop"]))
    if len(start) != len(stop):
        raise ValueError(f"{start} and {stop} have different lengths")
    return str(row["tensor"]), Region(start, stop)
