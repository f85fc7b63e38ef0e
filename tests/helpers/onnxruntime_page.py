"""`docs/onnxruntime.md`: the meaning of ONNX Runtime's public names in coexec.

    python -m tests.helpers.onnxruntime_page    # write the page again

Every public name of ONNX Runtime has a row, and every row is a public name. If a version of ONNX
Runtime adds a name, the test that compares them fails (`tests/session/test_onnxruntime_page.py`).
"""

from pathlib import Path
from types import ModuleType
from typing import Any

import onnxruntime

import coexec

PAGE = Path(__file__).parents[2] / "docs" / "onnxruntime.md"

_OWN = "as in ONNX Runtime, by its own session"
_WHEREVER = "by the plan or the own session"
_REPORTED = "what ONNX Runtime reports, in every state"
_KEPT = "as in ONNX Runtime; its own session stays open from then on"
_UNPLANNED = "nothing is planned"
_MEMORY = "of the own session's memory; plans have buffers of their own"
_SILENT = "of the own session; a plan has no use for it"
_SAID = "of the own session; a plan decides itself what runs when, which is logged once"
_CORES = "nothing is planned, unless `devices=[...]` are named"

_SESSION = {
    "create_ortvalue_from_shape_and_type": _KEPT,
    "disable_fallback": "remembered for the own session",
    "enable_fallback": "remembered for the own session",
    "end_profiling": "the name of a file: Chrome's trace of the runs that plans have answered, or "
                     "ONNX Runtime's own profile if no plan has answered any",
    "get_input_epdevices": _OWN,
    "get_input_memory_infos": _OWN,
    "get_inputs": f"{_REPORTED}; those that `shapes=` fixes have these sizes",
    "get_modelmeta": _REPORTED,
    "get_output_memory_infos": _OWN,
    "get_outputs": _REPORTED,
    "get_overridable_initializers": f"{_REPORTED}; a request that feeds one is answered by the own "
                                    f"session",
    "get_profiling_start_time_ns": "by `time.monotonic_ns` if the own session is not open",
    "get_provider_graph_assignment_info": _OWN,
    "get_provider_options": "of ONNX Runtime's execution providers",
    "get_providers": "ONNX Runtime's, and after them the devices of the plan in use",
    "get_session_options": "of the own session, or those that it will be opened with",
    "get_tuning_results": _OWN,
    "io_binding": "a `coexec.IOBinding`",
    "release_captured_graph": _OWN,
    "run": f"{_WHEREVER}; feeds may also be `OrtValue`, DLPack tensors, objects with `__array__`, "
           f"tuples and numbers",
    "run_async": f"{_WHEREVER}, on threads of coexec",
    "run_with_iobinding": f"{_WHEREVER}: a plan answers if every bound value lies in main memory "
                          f"and has a type that NumPy has",
    "run_with_ort_values": f"{_WHEREVER}; nothing is copied",
    "run_with_ortvaluevector": _OWN,
    "set_ep_dynamic_options": _KEPT,
    "set_providers": "the own session is opened again; no plan answers while one is no CPU, "
                     "unless devices were named",
    "set_tuning_results": _KEPT,
}  # fmt: skip

_WEIGHTS = (
    f"{_UNPLANNED}. Only `coexec.SessionOptions` reports it: a plan does not see weights that "
    f"`onnxruntime.SessionOptions` holds"
)
_OPTIONS = {
    "add_external_initializers": _WEIGHTS,
    "add_external_initializers_from_files_in_memory": _WEIGHTS,
    "add_free_dimension_override_by_denotation": "planned for these sizes",
    "add_free_dimension_override_by_name": "planned for these sizes",
    "add_initializer": _WEIGHTS,
    "add_provider": _CORES,
    "add_provider_for_devices": _CORES,
    "add_session_config_entry": "entries that change what is computed (denormals, quantisation, "
                                "approximations, fewer optimisers, ONNX Runtime's own format): "
                                "nothing is planned; that name threads: nothing is planned, unless "
                                "`devices=[...]` are named; others are the own session's",
    "clear_ep_context_data_read_func": _SILENT,
    "enable_cpu_mem_arena": _MEMORY,
    "enable_mem_pattern": _MEMORY,
    "enable_mem_reuse": _MEMORY,
    "enable_profiling": "runs of plans are recorded too; see `end_profiling`",
    "execution_mode": _SAID,
    "execution_order": _SAID,
    "get_session_config_entry": "as in ONNX Runtime",
    "graph_optimization_level": "less than all optimisations: nothing is planned",
    "has_providers": "as in ONNX Runtime",
    "inter_op_num_threads": _SAID,
    "intra_op_num_threads": "fewer than this process has cores: nothing is planned, unless "
                            "`devices=[...]` are named",
    "log_severity_level": _SILENT,
    "log_verbosity_level": _SILENT,
    "logid": _SILENT,
    "optimized_model_filepath": "the own session is opened and writes it",
    "profile_file_prefix": "begins the name of either profile",
    "register_custom_ops_library": f"{_UNPLANNED}: `coexec.SessionOptions` reports why at once, "
                                   f"with `onnxruntime.SessionOptions` the unknown operators do",
    "set_ep_context_data_read_func": _SILENT,
    "set_load_cancellation_flag": _SILENT,
    "set_provider_selection_policy": _CORES,
    "set_provider_selection_policy_delegate": _CORES,
    "use_deterministic_compute": _UNPLANNED,
    "use_per_session_threads": "False: nothing is planned, unless `devices=[...]` are named",
}  # fmt: skip

_RUN = {
    "add_active_adapter": "the own session answers requests with `RunOptions`, if the model has "
                          "weights that may be replaced",
    "add_run_config_entry": _SILENT,
    "get_run_config_entry": "as in ONNX Runtime",
    "log_severity_level": _SILENT,
    "log_verbosity_level": _SILENT,
    "logid": _SILENT,
    "only_execute_path_to_fetches": "a plan computes all outputs",
    "terminate": "ends a run before its next segment, with the exception of ONNX Runtime; a plan "
                 "that is one device's own session is not interrupted, and ends so afterwards",
}  # fmt: skip

_BINDING = {
    "bind_cpu_input": "not copied",
    "bind_input": "not copied",
    "bind_ortvalue_input": "not copied",
    "bind_ortvalue_output": "a plan copies its result there",
    "bind_output": "a plan copies its result into a buffer that is given; without one, the "
                   "`OrtValue` holds the result itself",
    "clear_binding_inputs": "as in ONNX Runtime",
    "clear_binding_outputs": "as in ONNX Runtime",
    "copy_outputs_to_cpu": "of the latest run, whatever answered it; nothing before the first",
    "get_outputs": "of the latest run, whatever answered it; nothing before the first",
    "get_outputs_as_ortvaluevector": "the same, as ONNX Runtime's vector",
    "synchronize_inputs": _OWN,
    "synchronize_outputs": _OWN,
}  # fmt: skip

TABLES: dict[str, dict[str, str]] = {
    "InferenceSession": _SESSION,
    "SessionOptions": _OPTIONS,
    "RunOptions": _RUN,
    "IOBinding": _BINDING,
}
"""By class of ONNX Runtime, the meaning of each of its public names."""

_HEAD = """# In place of onnxruntime

`import coexec as ort`, or `onnxruntime.InferenceSession = coexec.InferenceSession`: either is
enough. `coexec.InferenceSession` is a subclass of ONNX Runtime's. Whatever no plan answers, ONNX
Runtime's own session does, with its own results, options and errors. `session.degraded` says why.

This page is written by `python -m tests.helpers.onnxruntime_page`, and a test compares it with the
public names of ONNX Runtime.

* **Switched off.** With `COEXEC=off` in the environment, all sessions of a process are ONNX
  Runtime's own: nothing is planned, measured or written, and arguments for plans are not read.
  `planner="none"` does the same for one session. `session.degraded` says so.
* **Precision.** Plans compute in float32. One more keyword allows less,
  `InferenceSession(path, providers=..., precision="bf16")`, with limits that are checked
  ([precision](precision.md)).
* **Errors** are of coexec's classes (`CoexecError`) and of those that ONNX Runtime raises, at once:
  `except NoSuchFile`, `except InvalidArgument` and `except ValueError` find what they should.
* **Copies.** A session may be pickled and copied: the copy opens the model again, with the same
  arguments. `onnxruntime.SessionOptions` travels by its attributes; `coexec.SessionOptions` also
  with the entries, overrides and libraries that it was given, and may be pickled by itself.
* **What a model says about itself** is kept beside its plan, so that a session that starts from the
  cache reports it without opening ONNX Runtime's own. It has the attributes of
  `onnxruntime.NodeArg` and `onnxruntime.ModelMetadata`, but is not of these classes.
* **Weights in options.** `onnxruntime.SessionOptions` does not tell which weights it holds. A
  program that calls `add_initializer` or `add_external_initializers` takes `coexec.SessionOptions`.
* **Telemetry.** ONNX Runtime sends events about sessions to Microsoft by default. `import coexec`
  sets `ORT_DISABLE_TELEMETRY=1` in the environment, unless the variable is set: nothing is sent. It
  has no effect on a program that imports `onnxruntime` first.
"""


def public(thing: Any) -> list[str]:
    """The sorted public names of a class or module; for a module, without its submodules."""
    names = [name for name in dir(thing) if not name.startswith("_")]
    if not isinstance(thing, ModuleType):
        return names
    return [name for name in names if not isinstance(getattr(thing, name), ModuleType)]


def page() -> str:
    """The text of the page."""
    parts = [_HEAD]
    for kind, rows in TABLES.items():
        parts.append(f"## {kind}\n\n| name | here |\n|---|---|")
        parts.append("\n".join(f"| `{name}` | {rows[name]} |" for name in sorted(rows)) + "\n")
    own = [name for name in public(onnxruntime) if name in coexec.__all__]
    runtime_names = [name for name in public(onnxruntime) if name not in coexec.__all__]
    parts.append(
        f"## The module\n\nOf coexec's own: {_listed(own)}. All others are ONNX Runtime's, looked "
        f"up there on first use: {_listed(runtime_names)}; and `capi`.\n"
    )
    return "\n".join(parts)


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
