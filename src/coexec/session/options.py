"""Effects of ``SessionOptions`` and ``RunOptions`` on plans.

`docs/onnxruntime.md` lists them in a table. If an option cannot be followed by a plan, ONNX
Runtime's own session runs the model. It follows all options.
"""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnxruntime
from onnxruntime import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
)

from coexec.engines.detect import usable_cores
from coexec.engines.names import cores_of, parse
from coexec.session.reference import further_providers

_log = logging.getLogger("coexec")

ORT_KEYWORDS = ("disabled_optimizers", "enable_fallback", "read_config_from_model")
"""Keywords that ``onnxruntime.InferenceSession`` reads from its ``**kwargs``."""
_RESULTS = (
    "mlas.qnbit.force_fp32", "mlas.use_lut_gemm", "optimization.disable_specified_optimizers",
    "optimization.enable_cast_chain_elimination", "optimization.enable_gelu_approximation",
    "session.disable_double_qdq_remover", "session.disable_qdq_constant_folding",
    "session.disable_quant_qdq", "session.enable_dq_matmulnbits_fusion",
    "session.enable_quant_qdq_cleanup", "session.graph_optimization_level",
    "session.model_external_initializers_file_folder_path",
    "session.qdq_matmulnbits_accuracy_level", "session.qdqisint8allowed",
    "session.set_denormal_as_zero", "session.use_deterministic_compute",
    "session.x64quantprecision",
)  # fmt: skip
"""Entries of the configuration that change the results."""
_THREADS = (
    "session.intra_op_num_threads",
    "session.intra_op_thread_affinities",
    "session.use_per_session_threads",
)
"""Entries of the configuration that determine which cores are used."""
_WEIGHTS = {
    "add_external_initializers",
    "add_external_initializers_from_files_in_memory",
    "add_initializer",
}
_OF_THE_SESSION = {
    "execution_mode": ExecutionMode.ORT_SEQUENTIAL,
    "execution_order": ExecutionOrder.DEFAULT,
    "inter_op_num_threads": 0,
}
"""Options, with their defaults, for decisions that a plan makes itself."""


def _noted(name: str) -> Callable[..., Any]:
    """A method of ONNX Runtime's class whose calls are recorded in `SessionOptions.calls`."""
    ort_method = getattr(onnxruntime.SessionOptions, name)

    @functools.wraps(ort_method)
    def method(self: "SessionOptions", *arguments: Any, **keywords: Any) -> Any:
        result = ort_method(self, *arguments, **keywords)
        self.calls.append((name, arguments, keywords))
        return result

    return method


class SessionOptions(onnxruntime.SessionOptions):  # type: ignore[misc]
    """ONNX Runtime's options, which also record the calls of their methods.

    ONNX Runtime's class cannot report the arguments of earlier calls. Objects of this class may be
    copied and pickled, unless they hold tensors.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        """Names of the called methods, with positional and named arguments."""

    add_external_initializers = _noted("add_external_initializers")
    add_external_initializers_from_files_in_memory = _noted(
        "add_external_initializers_from_files_in_memory"
    )
    add_free_dimension_override_by_denotation = _noted("add_free_dimension_override_by_denotation")
    add_free_dimension_override_by_name = _noted("add_free_dimension_override_by_name")
    add_initializer = _noted("add_initializer")
    add_provider = _noted("add_provider")
    add_provider_for_devices = _noted("add_provider_for_devices")
    add_session_config_entry = _noted("add_session_config_entry")
    register_custom_ops_library = _noted("register_custom_ops_library")
    set_provider_selection_policy = _noted("set_provider_selection_policy")
    set_provider_selection_policy_delegate = _noted("set_provider_selection_policy_delegate")

    def __reduce__(self) -> tuple[Any, ...]:
        return new_options, (type(self), attributes(self), self.calls)


def attributes(options: Any) -> dict[str, Any]:
    """The readable attributes of ONNX Runtime's options or of a subclass."""
    return {
        name: getattr(options, name)
        for name, value in vars(onnxruntime.SessionOptions).items()
        if isinstance(value, property)
    }


def portable_options(options: Any) -> Any:
    """Options in a form that can be pickled. For ONNX Runtime's own class: its attributes only."""
    if options is None or isinstance(options, SessionOptions):
        return options
    return attributes(options)


def recreated_options(portable: Any) -> Any:
    """The options that ``portable`` was made from: inverse of `portable_options`."""
    return (
        new_options(onnxruntime.SessionOptions, portable)
        if isinstance(portable, dict)
        else portable
    )


def new_options(kind: type, values: Mapping[str, Any], calls: Sequence[Any] = ()) -> Any:
    """Options of class ``kind`` with these attributes, on which these calls were made."""
    options = kind()
    for name, value in values.items():
        setattr(options, name, value)
    for name, arguments, keywords in calls:
        getattr(options, name)(*arguments, **keywords)
    return options


def why_unplanned(
    options: Any,
    providers: Sequence[Any] | None,
    devices: Sequence[str] | None,
    disabled_optimizers: Any = None,
    *,
    has_reference: bool = False,
) -> str | None:
    """The reason why nothing is planned and ONNX Runtime's own session answers; None if a plan may
    be made.

    Args:
        has_reference: plans are compared with a session of the providers.
    """
    further = further_providers(providers)
    if further and devices is None and not has_reference:
        return (
            f"ONNX Runtime runs it with {', '.join(further)}; name devices=[...] to have it planned"
        )
    if disabled_optimizers:
        return "disabled_optimizers changes what is computed; leave it out to have it planned"
    if options is None:
        return None
    return _changes_results(options) or (_takes_cores(options) if devices is None else None)


def may_give_weights(options: Any) -> bool:
    """Whether the options may hold weights of the model. True for options of ONNX Runtime's own
    class, which cannot report it."""
    if options is None:
        return False
    calls = getattr(options, "calls", None)
    return calls is None or bool(_WEIGHTS & {name for name, *_ in calls})


def _changes_results(options: Any) -> str | None:
    """The reason why plans cannot follow the options: one of them changes the results; None if
    there is no such option."""
    if options.graph_optimization_level != GraphOptimizationLevel.ORT_ENABLE_ALL:
        return "less than all optimisations are asked for, and plans need them"
    if options.use_deterministic_compute:
        return "use_deterministic_compute asks for ONNX Runtime's own results in every run"
    if _config(options, "session.load_model_format") == "ORT":
        return "the model has ONNX Runtime's own format; give the ONNX model to have it planned"
    for key in _RESULTS:
        if (value := _config(options, key)) not in ("", "0"):
            return f"the session's configuration {key}={value} changes what is computed"
    called = {name: arguments for name, arguments, _ in getattr(options, "calls", ())}
    if "register_custom_ops_library" in called:
        return (
            f"operators of {called['register_custom_ops_library'][0]!r} are known to ONNX "
            f"Runtime's session only"
        )
    if weights := sorted(_WEIGHTS & called.keys()):
        return f"{weights[0]} gives weights that are not in the model"
    return None


def _takes_cores(options: Any) -> str | None:
    """The reason why nothing is planned without named devices: an option selects threads or cores;
    None if there is no such option."""
    remedy = "name devices=[...] to have it planned"
    threads = options.intra_op_num_threads
    if 0 < threads < len(usable_cores()):
        return (
            f"intra_op_num_threads={threads} leaves cores to others; {remedy} for cores of its own"
        )
    if not options.use_per_session_threads:
        return f"use_per_session_threads=False asks for the program's threads; {remedy}"
    if options.has_providers():
        return f"the options name execution providers; {remedy}"
    for key in _THREADS:
        if (value := _config(options, key)) != "":
            return f"the session's configuration {key}={value} asks for certain threads; {remedy}"
    return None


def _config(options: Any, key: str) -> str:
    """An entry of the session's configuration; "" if it is not set."""
    try:
        return str(options.get_session_config_entry(key))
    except RuntimeError:
        return ""


_warned: set[str] = set()


def warn_of(options: Any) -> None:
    """Log, once in a process, each changed option that plans ignore."""
    for name, default in _OF_THE_SESSION.items():
        value = default if options is None else getattr(options, name)
        if value != default and name not in _warned:
            _warned.add(name)
            _log.warning(
                "SessionOptions.%s=%s concerns ONNX Runtime's own session; a plan decides "
                "itself what runs when",
                name,
                getattr(value, "name", value),
            )


def options_for(devices: Sequence[str]) -> SessionOptions:
    """Options with as many threads as the CPU devices have cores."""
    options = SessionOptions()
    requests = [parse(name) for name in devices]
    cores = {core for r in requests if r.kind == "cpu" for core in cores_of(r)}
    options.intra_op_num_threads = len(cores)  # devices may share them
    return options
