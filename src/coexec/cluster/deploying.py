"""Bring a plan to the machines: jobs, share models, and the weights that they do not have yet."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from coexec.cluster.jobs import MachineJob, Send, jobs_of
from coexec.cluster.planning import Planned
from coexec.cluster.shares import ShareModels
from coexec.cluster.team import Member
from coexec.ir.graph import Graph

__all__ = ["Deployment", "deploy"]

_SLOWER = 4
"""Times what a message's bytes take, as others may be under way."""


@dataclass
class Deployment:
    """A plan that machines have, and how far frames are."""

    epoch: int
    planned: Planned
    jobs: Mapping[str, MachineJob]
    sent: set[int] = field(default_factory=set)
    """Numbers of frames that went in by this epoch."""
    progress_s: float = field(default_factory=time.monotonic)
    """`time.monotonic` of the last answer, or of the first frame after nothing was inside."""

    @property
    def machines(self) -> tuple[str, ...]:
        """All that have a part of it."""
        return self.planned.plan.machines


async def deploy(
    planned: Planned, epoch: int, members: Mapping[str, Member], models: ShareModels, graph: Graph,
    message_s: float,
) -> Deployment:  # fmt: skip
    """Give every machine of a plan what it needs; frames of ``epoch`` may come then.

    Args:
        message_s: a message that was not taken after so long, beside what its bytes take, is
            reported by its sender.

    Raises:
        CoexecError: a machine cannot run its share.
        MachineLostError: one was lost meanwhile.
        KeyError: one is no member any more.
    """
    jobs, strips = jobs_of(planned.plan, graph)
    shares = await asyncio.to_thread(
        lambda: {key: models.of(strip) for key, strip in strips.items()}
    )
    peers = {name: members[name].handle for name in jobs}
    limit_s = message_s + _SLOWER * _longest_message_s(jobs, members)
    stages = planned.plan.stages

    async def bring(name: str) -> None:
        own = {
            (stage, share): model for (stage, share), model in shares.items()
            if stages[stage].shares[share].machine == name
        }  # fmt: skip
        handle = peers[name]
        digests = list({digest for model in own.values() for digest in model.weights})
        lacking = await handle.call("lacks", digests)
        if lacking:
            await handle.call("keep", models.weights(lacking))
        await handle.call("deploy", epoch, jobs[name], own, peers, limit_s)

    await asyncio.gather(*map(bring, jobs))
    return Deployment(epoch, planned, jobs)


def _longest_message_s(jobs: Mapping[str, MachineJob], members: Mapping[str, Member]) -> float:
    return max(
        (step.size_bytes / members[name].bandwidth_bytes_per_s
         for name, job in jobs.items() for step in job.steps if isinstance(step, Send)),
        default=0.0,
    )  # fmt: skip
