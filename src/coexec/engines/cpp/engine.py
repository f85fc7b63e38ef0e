"""The engine `cpp`: generated kernels on CPU cores, compiled by the machine's C++ compiler."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from coexec.cache.source import source_digest
from coexec.engines import detect
from coexec.engines.base import Engine, OpenEngine, Processor
from coexec.engines.cpp.compiler import compiler, has_compiler
from coexec.engines.cpp.options import CppOptions
from coexec.errors import DeviceError
from coexec.hardware.hardware import Device, EngineInfo
from coexec.precision import FLOAT32, Precision


class Cpp(Engine):
    """The engine that runs generated kernels on CPU cores without a further runtime."""

    name = "cpp"
    rank = 40
    builds_kernels = True
    options = CppOptions
    distributions = ("coexec",)
    export_options: ClassVar[Mapping[str, str]] = {"compiler": "any"}

    @property
    def installed(self) -> str:
        if not has_compiler():
            return f"{super().installed}, no compiler"
        found = compiler()
        return f"{self._generator}, {found.title} {found.identity[:8]}"

    @property
    def _generator(self) -> str:
        """The version of the kernels' text."""
        folder = Path(__file__).parent
        digests = source_digest(folder.parent / "kernels"), source_digest(folder)
        return f"{super().installed}-{'-'.join(digests)}"

    def configured(self, options: Any) -> Engine:
        return _CompiledBefore() if options.compiler == "any" else self

    def processors(self, kind: str) -> Sequence[Processor]:
        name = detect.processor_name()
        try:
            driver = compiler().title
        except DeviceError as error:
            return [Processor(kind, name, unusable=str(error))]
        return [Processor(kind, name, driver=driver, notes=_notes(), precisions=_precisions())]

    def describe(self, device: Device, options: CppOptions) -> EngineInfo:
        from coexec.engines.cpp.device import architecture

        if options.compiler == "own":
            compiler()  # the reason if there is none
        block = architecture(len(device.cores), options).block
        info = super().describe(device, options)
        version = f"{self.configured(options).version}, blocks of {block}"
        return replace(info, version=version, precision=options.precision)

    def open(
        self, device: Device, info: EngineInfo, options: CppOptions, folder: Path | None
    ) -> OpenEngine:
        from coexec.engines.cpp.device import CppCores

        return CppCores(device, info, options, folder)


class _CompiledBefore(Cpp):
    """The engine with kernels of any compiler. Without a compiler, there is nothing to try."""

    def __init__(self) -> None:
        self.needs_trial = has_compiler()

    @property
    def installed(self) -> str:
        return f"{self._generator}, any compiler"


def _precisions() -> tuple[Precision, ...]:
    """The precisions that may gain time: bf16 where the processor multiplies pairs of bfloat16."""
    has_pairs = "AVX512BF16" in detect.features() or "bf16" in detect.reported_features()
    return (FLOAT32, "bf16") if has_pairs else (FLOAT32,)


def _notes() -> tuple[str, ...]:
    if find_spec("pocl_binary_distribution") is None:
        return ()
    return (
        "PoCL is installed and no longer used, as this engine has taken its place: pip uninstall "
        "pocl-binary-distribution",
    )
