"""Exports have compiled kernels: machines with these instruction sets need no compiler."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from coexec.engines import detect
from coexec.engines.cpp import compiler, libraries
from coexec.engines.cpp.libraries import Libraries
from coexec.engines.kernels.base import KernelLaunch
from coexec.errors import DeviceError
from coexec.exports.manifest import Manifest
from coexec.model.difference import worst_difference
from coexec.model.inputs import random_inputs
from coexec.model.load import load
from coexec.model.reference_session import plain_session
from coexec.session import InferenceSession
from coexec.session.exporting import export
from coexec.settings import Settings
from tests.helpers.core_programs import cpp_name
from tests.helpers.gpu_networks import mixed_network
from tests.helpers.patience import ENOUGH_S

_ANSWER = """
import json, sys, warnings
import numpy as np
import coexec

folder, cache, feeds, answers = sys.argv[1:]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with coexec.InferenceSession(folder, cache=cache) as session:
        found = session.run(None, dict(np.load(feeds)))
        np.savez(answers, *found)
        said = [str(each.message) for each in caught]
        print(json.dumps([session.devices, str(session.degraded or ""), said]))
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For one core, from a session in this process that has loaded the kernels already."""
    folder = tmp_path_factory.mktemp("exported")
    onnx.save(mixed_network(), str(folder / "m.onnx"))
    settings = Settings(devices=[cpp_name()], planner="single", cache=folder / "cache")
    words: dict[str, Any] = {"devices": settings.devices, "planner": "single"}
    with InferenceSession(str(folder / "m.onnx"), cache=settings.cache, **words):
        export(str(folder / "m.onnx"), folder / "e", settings)
    return folder / "e"


class Machine:
    """A process without a compiler, with an empty cache and other variables of the environment."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self._folder = folder
        kept = {name: os.environ[name] for name in ("COEXEC_LOOP",) if name in os.environ}
        self._environment = {
            "PATH": str(folder / "nothing"),
            "CXX": "/nowhere/c++",
            "XDG_CACHE_HOME": str(folder / "user"),
            **kept,
            **variables,
        }

    def answers(self, exported: Path) -> tuple[list[str], str, list[str]]:
        """The devices of a session that has answered right, why it is degraded, and what it has
        said."""
        proto = onnx.load(str(exported / "model" / "m.onnx"))
        feeds = random_inputs(load(proto).graph)
        files = self._folder / "feeds.npz", self._folder / "answers.npz"
        np.savez(files[0], **feeds)
        words = map(str, (exported, self._folder / "cache", *files))
        ended = subprocess.run(
            [sys.executable, "-c", _ANSWER, *words],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=ENOUGH_S,
        )
        assert ended.returncode == 0, ended.stderr
        found = np.load(files[1])
        expected = plain_session(proto).run(None, feeds)
        for name, each in zip(found.files, expected, strict=True):
            assert worst_difference(found[name], each) < 1e-5
        devices, degraded, said = json.loads(ended.stdout)
        return devices, degraded, said


def test_a_machine_without_a_compiler_computes(exported: Path, tmp_path: Path) -> None:
    options = Manifest.read(exported).engine_options
    assert options == {"cpp": {"compiler": "any"}}
    device = cpp_name().partition("/")[0]
    for _ in range(2):
        assert Machine(tmp_path).answers(exported) == ([device], "", [])


def test_other_instruction_sets_are_refused(exported: Path, tmp_path: Path) -> None:
    """ONNX Runtime answers. numpy hides all sets that it does not need itself."""
    features: Mapping[str, bool] = import_module("numpy._core._multiarray_umath").__cpu_features__
    dispatched = import_module("numpy._core._multiarray_umath").__cpu_dispatch__
    hidden = " ".join(name for name in dispatched if features.get(name))
    if not hidden:
        pytest.skip("numpy needs all instruction sets of this processor")
    devices, degraded, said = Machine(tmp_path, NPY_DISABLE_CPU_FEATURES=hidden).answers(exported)
    assert devices == []
    assert "finds no compiled kernels that this machine can load, and kernels in C++ " in degraded
    assert degraded.endswith("or export the model on a machine with this processor and system")
    assert "\n" not in degraded
    assert any("instruction sets" in each for each in said)
    assert sum(degraded in each for each in said) == 1


def test_a_library_for_other_instructions_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that numpy does not list, too."""
    cpp_name()
    kernel = "__kernel void k(__global int* y)\n{\n  y[0] = 1;\n}\n"
    launches = [KernelLaunch("k", kernel, (), frozenset(), (1, 1, 1), None)]
    Libraries("cpu:0", None, tmp_path).functions(launches, ["y"])
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CXX", "/nowhere/c++")
    library = Libraries("cpu:0", None, tmp_path)
    compiler.instruction_sets.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(detect, "reported_features", lambda: ("bmi9",))
        with pytest.raises(
            DeviceError, match=r"cpu:0 finds no compiled kernels .*, and kernels in"
        ):
            library.functions(launches, ["y"])
    compiler.instruction_sets.cache_clear()
    libraries._loaded.clear()
    assert library.functions(launches, ["y"]) and library.compiled == 0
