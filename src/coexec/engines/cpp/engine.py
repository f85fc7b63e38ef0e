"""The engine `cpp`: generated kernels on CPU cores, compiled by the machine's C++ compiler."""

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from coexec.cache.source import source_digest
from coexec.engines import detect
from coexec.engines.base import Engine, OpenEngine, Processor
from coexec.engines.cpp.compiler import compiler
from coexec.engines.cpp.options import CppOptions
from coexec.errors import DeviceError
from coexec.hardware.hardware import Device, EngineInfo


class Cpp(Engine):
    """The engine that runs generated kernels on CPU cores without a further runtime."""

    name = "cpp"
    rank = 40
    builds_kernels = True
    options = CppOptions
    distributions = ("coexec",)

    @property
    def installed(self) -> str:
        try:
            found = compiler()
        except DeviceError:
            return f"{super().installed}, no compiler"
        folder = Path(__file__).parent
        digests = source_digest(folder.parent / "kernels"), source_digest(folder)
        return f"{super().installed}-{'-'.join(digests)}, {found.title} {found.identity[:8]}"

    def processors(self, kind: str) -> Sequence[Processor]:
        name = detect.processor_name()
        try:
            return [Processor(kind, name, driver=compiler().title, notes=_notes())]
        except DeviceError as error:
            return [Processor(kind, name, unusable=str(error))]

    def describe(self, device: Device, options: CppOptions) -> EngineInfo:
        from coexec.engines.cpp.device import architecture

        compiler()  # the reason if there is none
        block = architecture(len(device.cores), options).block
        info = super().describe(device, options)
        return replace(info, version=f"{info.version}, blocks of {block}")

    def open(
        self, device: Device, info: EngineInfo, options: CppOptions, folder: Path | None
    ) -> OpenEngine:
        from coexec.engines.cpp.device import CppCores

        return CppCores(device, info, options, folder)


def _notes() -> tuple[str, ...]:
    if find_spec("pocl_binary_distribution") is None:
        return ()
    return (
        "PoCL is installed and no longer used, as this engine has taken its place: pip uninstall "
        "pocl-binary-distribution",
    )
