"""The execution provider of the user's own session, with which planner "auto" compares plans."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from onnxruntime import get_available_providers

from coexec.engines.names import engine_of_provider
from coexec.engines.registry import engine_names
from coexec.precision import FLOAT32, Precision
from coexec.settings import AUTO, Settings

_OF_CORES = ("CPUExecutionProvider", "AzureExecutionProvider")
"""Providers with which a session computes on CPU cores: Azure's takes only the operators of remote
servers, and every package has it."""
_POINTERS = ("gpu_external_alloc", "gpu_external_free", "user_compute_stream")
"""Options that are addresses in the user's process."""
_OF_TF32 = {"CUDAExecutionProvider": "use_tf32"}
"""Options that switch TF32 off; without them, the provider uses it."""


def further_providers(providers: Sequence[Any] | None) -> list[str]:
    """The providers for other processors than the CPU that ONNX Runtime has. It leaves out others,
    with a warning."""
    names = [p[0] if isinstance(p, tuple) and p else p for p in providers or ()]
    available = get_available_providers()
    return [name for name in names if name not in _OF_CORES and name in available]


def with_reference(
    settings: Settings, providers: Sequence[Any] | None, options: Sequence[Any] | None
) -> Settings | None:
    """Settings with which "auto" compares plans with a session of these providers, that computes as
    precisely as this session; None if nothing can be planned beside it.

    Args:
        providers, options: as ONNX Runtime takes them.
    """
    named = further_providers(providers)
    automatic = settings.planner == AUTO and settings.devices is None and settings.plan is None
    if len(named) != 1 or not automatic:
        return None
    own = _options_of(named[0], providers or (), options)
    if not isinstance(own, Mapping):
        return None  # ONNX Runtime refuses them
    texts = {str(name): str(value) for name, value in own.items()}
    if any(name in _POINTERS for name in texts) or any(";" in text for text in texts.values()):
        return None
    engine, number = engine_of_provider(named[0]), texts.pop("device_id", "0")
    if engine not in engine_names() or not number.isdecimal():
        return None
    tf32 = texts.get(_OF_TF32.get(named[0], ""), "1") not in ("0", "false", "False")
    precision: Precision = "tf32" if tf32 and named[0] in _OF_TF32 else FLOAT32
    text = ";".join(f"{name}={value}" for name, value in sorted(texts.items()))
    of_engine = {"precision": precision, "options": text} | dict(
        settings.engine_options.get(engine, {})
    )
    return replace(
        settings,
        reference=f"{engine}:{number}",
        engine_options={**settings.engine_options, engine: of_engine},
    )


def _options_of(name: str, providers: Sequence[Any], options: Any) -> Any:
    """The options of a provider as the program gives them, whatever they are."""
    for number, provider in enumerate(providers):
        if isinstance(provider, tuple) and provider[:1] == (name,):
            return provider[1] if len(provider) == 2 else None
        is_listed = isinstance(options, Sequence) and number < len(options)
        if provider == name and options:
            return (options[number] or {}) if is_listed else None
    return {}


def without_reference(settings: Settings) -> Settings:
    """Settings for a session on CPU cores: the provider did not start."""
    engine = settings.reference.partition(":")[0]
    others = {name: own for name, own in settings.engine_options.items() if name != engine}
    return replace(settings, reference="", engine_options=others)
