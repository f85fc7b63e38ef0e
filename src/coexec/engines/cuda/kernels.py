"""Loaded kernels of one GPU, and launches as nodes of a graph."""

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

from coexec.engines.cuda.compilers import Images
from coexec.engines.cuda.driver import Argument, CudaContext, CudaError, GraphNode, Pointer
from coexec.engines.cuda.failures import CompileError
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import Grid, KernelLaunch, Value
from coexec.engines.kernels.tuner import rounded, rule

_MOST_GROUPS = 65535
"""Of a launch, on all axes but the first."""


class LoadedKernels:
    """The kernels that were loaded, by their text and name."""

    def __init__(self, context: CudaContext, images: Images, arch: Architecture) -> None:
        self._context = context
        self._images = images
        self._arch = arch
        self._loaded: WeakValueDictionary[tuple[str, str], Any] = WeakValueDictionary()
        """Programs keep the kernels that they launch."""

    def of(self, launches: Sequence[KernelLaunch], tasks: Sequence[str] = ()) -> list[Any]:
        """The kernel of each launch; compiled and loaded if it is new.

        Args:
            tasks: the name of each launch's result, for messages.

        Raises:
            CompileError: a text does not compile, its kernel cannot be loaded, or a launch has too
                many groups.
            CudaError: there is not enough memory.
        """
        for launch in launches:
            self._grid(launch)
        keys = [(launch.source, launch.name) for launch in launches]
        new = list(dict.fromkeys(key for key in keys if key not in self._loaded))
        at = new[0] if new else ("", "")
        fresh = {}
        try:
            images = self._images.of([source for source, _ in new])
            for at in new:
                fresh[at] = self._context.kernel(images[at[0]], at[1], self._images.wait)
        except (CompileError, CudaError) as error:
            if isinstance(error, CudaError) and error.is_out_of_memory:
                raise
            source = (isinstance(error, CompileError) and error.source) or at[0]
            number = [launch.source for launch in launches].index(source)
            task = f" of {tasks[number]!r}" if tasks else ""
            raise CompileError(f"kernel {launches[number].name}{task}: {error}") from error
        known = {key: self._loaded[key] for key in keys if key not in fresh}
        self._loaded.update(fresh)
        return [fresh.get(key) or known[key] for key in keys]

    def node(
        self,
        launch: KernelLaunch,
        kernel: Any,
        place_of: Callable[[Value], tuple[int, int]],
        waits: Sequence[int] = (),
    ) -> GraphNode:
        """A launch as a node.

        Args:
            launch: its constants are in the memory of the GPU, see `program.resident`.
            place_of: the address of a tensor's memory, and the tensor's offset in scalars there.
        """
        arguments: list[Argument] = []
        for argument in launch.arguments:
            if isinstance(argument, Value):
                address, offset = place_of(argument)
                arguments += [Pointer(address), offset]
            elif isinstance(argument, int):
                arguments.append(argument)
            else:
                arguments.append(Pointer(argument.address))  # type: ignore[attr-defined]
        return GraphNode(kernel, *self._grid(launch), tuple(arguments), tuple(waits))

    def _grid(self, launch: KernelLaunch) -> tuple[Grid, Grid]:
        """Number of groups of a launch, and of work items in a group.

        Raises:
            CompileError: there are more groups than CUDA allows.
        """
        group = rule(launch, self._arch)
        x, y, z = (n // g for n, g in zip(rounded(launch.grid, group), group, strict=True))
        if max(y, z) > _MOST_GROUPS:
            raise CompileError(f"{launch.name} has {x} x {y} x {z} groups of work items")
        return (x, y, z), group
