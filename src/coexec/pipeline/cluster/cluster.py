"""`Cluster`: machines to open sessions on."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from coexec.arguments import check_model
from coexec.cache import Cache
from coexec.engines.detect import usable_cores
from coexec.errors import UsageError
from coexec.pipeline.cluster.machine import MachineOptions
from coexec.pipeline.cluster.nodes import (
    LocalNodes,
    address_here,
    check_installed,
    is_own,
    make_token,
    nodes_of,
    prepare,
)
from coexec.pipeline.cluster.session import ClusterSession
from coexec.pipeline.cluster.settings import ClusterSettings, read_settings
from coexec.selection.user_model import UserModel
from coexec.settings import check_shapes

if TYPE_CHECKING:
    from coexec.pipeline.cluster.ray_team import Connection

_MOST_NODES = 64


class Cluster:
    """A cluster of machines, or of nodes on this machine. Close it, or use ``with``."""

    def __init__(
        self,
        settings: ClusterSettings | Path | str | None = None,
        *,
        address: str | None = None,
        nodes: int | None = None,
        token: Path | str | None = None,
        cache: Cache | Path | str | None = None,
    ) -> None:
        """
        Args:
            settings: properties of machines and network, or the path of a ``cluster.toml`` with
                them.
            address: HOST:PORT of the head; None: the address in the settings, or else that of the
                cluster of this machine.
            nodes: number of temporary nodes to start on this machine. If the settings name no
                machines, each node has one core; nodes share cores if there are too few.
            token: file with the cluster's token; None: the user's file.
            cache: cache for models, profiles and plans; by default the user's cache folder.

        Raises:
            UsageError: an argument is invalid, or no cluster is known.
            DeviceError: Ray does not start, or the head does not answer.
        """
        check_installed()
        if settings is None:
            settings = ClusterSettings()
        elif not isinstance(settings, ClusterSettings):
            settings = read_settings(Path(settings))
        self._settings = settings
        self._cache = cache if isinstance(cache, Cache) else Cache(cache)
        self._exit = ExitStack()
        token = None if token is None else Path(token)
        try:
            if nodes is not None and address is not None:
                raise UsageError(
                    f"nodes={nodes} are a cluster of their own, address={address!r} "
                    f"is another; give one of them"
                )
            if nodes is not None:
                address = self._start_nodes(nodes, token)
            else:
                prepare(token)
            address = address or settings.address or address_here()
            self._connection = self._enter(address)
        except BaseException:
            self._exit.close()
            raise
        self._exit.callback(self._connection.close)

    def session(
        self,
        model: Any,
        *,
        planner: str = "pico",
        planner_options: Mapping[str, Any] | None = None,
        shapes: Mapping[str, Sequence[int] | int] | None = None,
        values: Mapping[str, Any] | None = None,
        credits: int | None = None,
        deadline_s: float = 60.0,
        settings: ClusterSettings | None = None,
    ) -> ClusterSession:
        """Cut a model into a pipeline and start it on the machines.

        Args:
            model: path, "zoo:NAME", serialized bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``.
            planner: a name in `coexec.pipeline.planners.PIPELINES`.
            shapes: shapes of inputs that the model leaves dynamic.
            values: values of inputs that become constants.
            credits: maximum number of frames in flight; None: as many as keep all machines busy.
            deadline_s: longest time from a frame's admission to its answer; a frame without an
                answer by then has failed.
            settings: settings to use instead of the cluster's, for example with other machines of
                the cluster or with more known properties.

        Raises:
            CoexecError: the model cannot be read, or the machines cannot run it.
        """
        user_model = UserModel(
            check_model(model), check_shapes(shapes or {}), self._cache, dict(values or {})
        )
        settings = settings or self._settings
        machine_names = self.machines
        named = settings.machines
        if named and not named.keys() & set(machine_names):
            raise UsageError(
                f"of the machines that the settings name ({', '.join(named)}) none is "
                f"there; there are {', '.join(machine_names) or 'none'}"
            )
        from coexec.pipeline.cluster.ray_team import RayTeam

        team = RayTeam(self._connection, settings.machines, only=bool(settings.machines))
        return ClusterSession(
            user_model.model,
            team,
            lambda facts: settings.known_of(facts.name),
            planner=planner,
            planner_options=planner_options,
            credits=credits,
            deadline_s=deadline_s,
            network=settings.network,
            limits=settings.limits,
        )

    @property
    def settings(self) -> ClusterSettings:
        """Properties of machines and network, including options of temporary nodes."""
        return self._settings

    @property
    def machines(self) -> tuple[str, ...]:
        """Names of the machines that are alive."""
        return tuple(sorted(self._connection.machines()))

    def close(self) -> None:
        """Leave the cluster, and end the nodes that were started for it. May be called again."""
        self._exit.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_nodes(self, count: int, token: Path | None) -> str:
        """Start nodes on this machine; return the address of their head."""
        if not 1 <= count <= _MOST_NODES:
            raise UsageError(f"nodes is a number from 1 to {_MOST_NODES}, not {count}")
        named = list(self._settings.machines)
        if named and len(named) < count:
            raise UsageError(
                f"{count} nodes are to be started, and the settings name "
                f"{len(named)} machines: {', '.join(named)}; name as many, or "
                f"none"
            )
        if token is None:
            make_token()
        prepare(token)
        nodes = LocalNodes()
        self._exit.callback(nodes.stop)
        names = named[:count] or [f"{nodes.folder.name}-{index}" for index in range(count)]
        if not named:
            cores = sorted(usable_cores())
            each = {
                name: MachineOptions([f"cpu:{cores[index % len(cores)]}"])
                for index, name in enumerate(names)
            }
            self._settings = replace(self._settings, machines=each)
        address = nodes.add(names[0])
        for name in names[1:]:
            nodes.add(name, address)
        return address

    def _enter(self, address: str) -> "Connection":
        """Connect by a node that runs here, or by a temporary node."""
        if not any(node.alive and is_own(node.address) for node in nodes_of(address)):
            nodes = LocalNodes()
            self._exit.callback(nodes.stop)
            nodes.add(None, address)
        from coexec.pipeline.cluster.ray_team import (
            Connection,  # Ray reads the token when it is imported
        )

        return Connection(address)
