"""Common steps of the verbs of `coexec cluster`: read the model, enter and leave the cluster."""

import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from coexec.cli.console import err
from coexec.cli.progress import progress
from coexec.errors import UsageError

if TYPE_CHECKING:
    from coexec.pipeline.cluster.cluster import Cluster
    from coexec.pipeline.cluster.session import ClusterSession
    from coexec.pipeline.cluster.settings import ClusterSettings
    from coexec.selection.user_model import UserModel
    from coexec.settings import Settings

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def numbers(option: str, text: str) -> list[float]:
    """ "2,2,1" as [2.0, 2.0, 1.0].

    Raises:
        UsageError: an item is no number above 0.
    """
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(0 < value < math.inf for value in values):
        raise UsageError(f"{option} {text!r} is not of the form 8 or 2,2,1, numbers above 0")
    return values


def checked_model(
    model: str, settings: "Settings", planner: str, credits: int | None, deadline_s: float
) -> "UserModel":
    """Read the model, and check all options that can be checked without contacting machines.

    Raises:
        CoexecError: the model cannot be read, or an option has no meaning.
    """
    from coexec.cache import Cache
    from coexec.pipeline.cluster.planning import Planning
    from coexec.pipeline.cluster.session import check_pipeline_options
    from coexec.selection.user_model import UserModel

    cache = settings.cache if isinstance(settings.cache, Cache) else Cache(settings.cache)
    user_model = UserModel.of(model, settings, cache)
    check_pipeline_options(user_model.model.graph, credits, deadline_s)
    Planning(user_model.model.graph, planner, settings.planner_options)
    return user_model


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Context in which SIGTERM and SIGHUP have the effect of Ctrl-C. Later signals are ignored,
    because nodes and machines are being ended then.
    """
    ending = False

    def end(number: int, frame: FrameType | None) -> Any:
        nonlocal ending
        if not ending:
            ending = True
            raise KeyboardInterrupt

    before = {each: signal.signal(each, end) for each in _ENDING}
    try:
        yield
    except KeyboardInterrupt:
        err.print("coexec: interrupted; what was started for it has been ended", soft_wrap=True)
        raise
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def entered(
    settings: "ClusterSettings",
    address: str | None,
    nodes: int | None,
    token: Path | None,
    cache: Path | None,
) -> "Iterator[Cluster]":
    """Context with a cluster. At its end, also after an error, the cluster is left and its nodes
    are ended.

    Raises:
        CoexecError: raised by `Cluster`.
    """
    from coexec.pipeline.cluster.cluster import Cluster

    with ended_by_signals():
        what = "joining the cluster" if nodes is None else f"starting {nodes} nodes here"
        with progress(what):
            cluster = Cluster(settings, address=address, nodes=nodes, token=token, cache=cache)
        with cluster:
            yield cluster


def pipeline_session(
    cluster: "Cluster", model: str, settings: "Settings", planner: str, **limits: Any
) -> "ClusterSession":
    """A session of the model on the cluster, with what the user has set.

    Args:
        limits: further keywords of `Cluster.session`.

    Raises:
        CoexecError: raised by `Cluster.session`.
    """
    return cluster.session(
        model,
        planner=planner,
        planner_options=settings.planner_options,
        shapes=settings.shapes,
        values=settings.values,
        **limits,
    )
