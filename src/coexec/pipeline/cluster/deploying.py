"""Deploy a plan: send jobs, share models and missing weights to the machines."""

import asyncio
from collections.abc import Mapping

from coexec.graph.graph import Graph
from coexec.pipeline.cluster.jobs import MachineJob, jobs_of
from coexec.pipeline.cluster.planning import Planned
from coexec.pipeline.cluster.shares import ShareModels
from coexec.pipeline.cluster.supervision import Deployment
from coexec.pipeline.cluster.team import Member
from coexec.pipeline.plan.flow import Message

_SLOWER = 4
"""Factor on the transfer time of a message, as other messages may be sent at the same time."""


async def deploy(
    planned: Planned,
    epoch: int,
    members: Mapping[str, Member],
    models: ShareModels,
    graph: Graph,
    message_s: float,
) -> Deployment:
    """Send each machine of a plan its job, models and weights; frames of ``epoch`` may come then.

    Args:
        message_s: time limit of a message, beside the transfer time of its bytes. The sender
            reports a message that was not taken by then.

    Raises:
        CoexecError: a machine cannot run its share.
        MachineLostError: a machine was lost meanwhile.
        KeyError: a machine is no longer a member.
    """
    jobs, strips = jobs_of(planned.plan, graph)
    shares = await asyncio.to_thread(
        lambda: {key: models.of(strip) for key, strip in strips.items()}
    )
    peers = {name: members[name].handle for name in jobs}
    limit_s = message_s + _SLOWER * _longest_message_s(jobs, members)
    stages = planned.plan.stages

    async def bring(name: str) -> None:
        own_models = {
            (stage, share): model
            for (stage, share), model in shares.items()
            if stages[stage].shares[share].machine == name
        }
        handle = peers[name]
        digests = list({digest for model in own_models.values() for digest in model.weights})
        lacking = await handle.call("lacks", digests)
        if lacking:
            await handle.call("keep", models.weights(lacking))
        await handle.call("deploy", epoch, jobs[name], own_models, peers, limit_s)

    await asyncio.gather(*map(bring, jobs))
    return Deployment(epoch, planned, jobs)


def _longest_message_s(jobs: Mapping[str, MachineJob], members: Mapping[str, Member]) -> float:
    return max(
        (
            action.what.size_bytes / members[name].bandwidth_bytes_per_s
            for name, job in jobs.items()
            for action in job.steps.values()
            if isinstance(action.what, Message)
        ),
        default=0.0,
    )
