"""Exports of torchvision and timm on an NVIDIA GPU: starts, errors, and branches side by side.

Of each model: seconds of a first start, with no compiled kernel, and of a warm start, a new process
with the kernels of the first; the largest difference from ONNX Runtime on the CPU in each
precision, relative to the largest value; milliseconds on the GPU with all branches at once, and
with the same kernels one after the other. A start opens the GPU and ends with the first answer;
reading the model is not part of it, but the column "load".

Exports and their reference answers are made by several processes before the first measurement and
stay in the folder. Weights are random; batch normalisations are fitted to their inputs, so that
numbers stay in range. Needs PyTorch with torchvision and timm for the exports.

    python benchmarks/gpu_exports.py                              # all thirty
    python benchmarks/gpu_exports.py googlenet FILE.onnx FOLDER
    python benchmarks/gpu_exports.py inception_v3 --runs 10000    # are all answers bitwise equal?
"""

import argparse
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime as ort
from common import show
from model_files import expanded, feeds_for, model_file

from coexec.arrays import Array
from coexec.engines.cuda.program import CudaProgram
from coexec.engines.cuda.timing import seconds_of
from coexec.engines.detect import usable_cores
from coexec.engines.kernels.dependencies import Dependencies
from coexec.engines.registry import describe
from coexec.errors import CoexecError, first_line
from coexec.model.difference import worst_difference
from coexec.selection.planning_context import PlanningContext
from coexec.settings import Settings

NETWORKS: Mapping[str, str] = {
    "squeezenet": "squeezenet1_1",
    "mobilenet_v2": "mobilenet_v2",
    "inception_v3": "inception_v3",
    "resnet34": "resnet34",
    "vgg16": "vgg16",
    "densenet121": "densenet121",
    "efficientnet_b0": "efficientnet_b0",
    "vit_tiny": "vit_tiny_patch16_224",
    "swin_t": "swin_tiny_patch4_window7_224",
    "convnext_tiny": "convnext_tiny",
    "googlenet": "googlenet",
    "nasnet_large": "nasnetalarge",
    "alexnet": "alexnet",
    "resnet18": "resnet18",
    "resnet50": "resnet50",
    "resnext50": "resnext50_32x4d",
    "mobilenet_v3": "mobilenet_v3_large",
    "shufflenet_v2": "shufflenet_v2_x1_0",
    "mnasnet": "mnasnet1_0",
    "efficientnet_v2_s": "efficientnet_v2_s",
    "regnet_y": "regnet_y_400mf",
    "coatnet": "coatnet_nano_rw_224",
    "poolformer": "poolformer_s12",
    "ghostnet": "ghostnet_100",
    "repvgg_a0": "repvgg_a0",
    "hrnet": "hrnet_w18_small",
    "edgenext": "edgenext_small",
    "res2net50": "res2net50_26w_4s",
    "dla34": "dla34",
    "mobilevit_s": "mobilevit_s",
}
"""The name of each architecture in torchvision, or in timm if torchvision does not have it."""

LIMITS: Mapping[str, float] = {"float32": 1e-4, "tf32": 5e-3, "fp16": 1e-2}
"""The precisions, and the largest allowed difference of each."""

FOLDER = Path(tempfile.gettempdir()) / "gpu_exports"
_ROUNDS = 30
_WARM_UP = 3


class Case(NamedTuple):
    """A model with inputs and ONNX Runtime's answers."""

    name: str
    path: str
    """Of the model."""
    arrays: str
    """Path of a .npz file with the inputs, "in:NAME", and the answers, "out:NAME"."""

    @property
    def feeds(self) -> dict[str, Array]:
        return self._arrays("in:")

    @property
    def expected(self) -> dict[str, Array]:
        return self._arrays("out:")

    def _arrays(self, prefix: str) -> dict[str, Array]:
        with np.load(self.arrays) as arrays:
            names = [name for name in arrays if name.startswith(prefix)]
            return {name.removeprefix(prefix): arrays[name] for name in names}


def prepared(
    words: Sequence[str], folder: Path, jobs: int, left_out: Callable[[str, str], None]
) -> Iterator[Case]:
    """The models, each a name of `NETWORKS`, a file, or a name of the zoo. All are made by parallel
    processes before the first is returned.

    Args:
        left_out: called with a name and the reason, for a model that cannot be made.
    """
    start_s = time.perf_counter()
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        futures = {word: pool.submit(_prepare, word, folder) for word in words}
    tell(f"{len(words)} models are ready after {time.perf_counter() - start_s:.0f} s")
    for word, future in futures.items():
        if error := future.exception():
            left_out(word, f"{type(error).__name__}: {first_line(error)}")
        else:
            yield future.result()


def _prepare(word: str, folder: Path) -> Case:
    folder = folder if word in NETWORKS else folder / "others"
    folder.mkdir(parents=True, exist_ok=True)
    path = _exported(word, folder) if word in NETWORKS else model_file(word, folder)
    arrays = folder / f"{path.stem}.npz"
    if not arrays.exists():
        feeds = feeds_for(path)
        session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        answers = zip(names, session.run(names, feeds), strict=True)
        entries = {f"in:{name}": array for name, array in feeds.items()}
        np.savez(arrays, **entries, **{f"out:{name}": array for name, array in answers})
    return Case(path.stem, str(path), str(arrays))


def _exported(name: str, folder: Path) -> Path:
    """The ONNX file of a network, with PyTorch's module beside it in NAME.pt."""
    import torch

    path = folder / f"{name}.onnx"
    if path.exists():
        return path
    torch.set_num_threads(2)  # several processes export
    torch.manual_seed(0)
    module, size = _architecture(NETWORKS[name])
    x = torch.randn(1, 3, size, size)
    _settle(module.eval(), x)
    torch.save(module, path.with_suffix(".pt"))
    names = {"input_names": ["x"], "output_names": ["y"]}
    try:
        torch.onnx.export(module, (x,), path, opset_version=17, dynamo=False, **names)
    except Exception as error:  # PyTorch has two exporters, and neither exports everything
        tell(f"{name}: {type(error).__name__}: {first_line(error)}; the other exporter is tried")
        torch.onnx.export(
            module, (x,), path, opset_version=18, dynamo=True, external_data=False, **names
        )
    return path


def _architecture(title: str) -> tuple[Any, int]:
    """A module with random weights, and height and width of its input."""
    import timm
    import torchvision

    if not hasattr(torchvision.models, title):
        module = timm.create_model(title)
        return module, module.default_cfg["input_size"][-1]
    inception = title in ("googlenet", "inception_v3")
    more = {"init_weights": False, "aux_logits": True} if inception else {}
    module = getattr(torchvision.models, title)(**more)
    return module, 299 if title == "inception_v3" else 224


def _settle(module: Any, x: Any) -> None:
    """Fit batch normalisations to their inputs: each divides by one root mean square.

    With means and variances of each channel, deep random networks would amplify rounding errors.
    """
    import torch

    def divide(part: Any, inputs: tuple[Any, ...]) -> None:
        part.running_mean.zero_()
        part.running_var.fill_(inputs[0].square().mean())

    kind = torch.nn.modules.batchnorm._BatchNorm
    parts = [part for part in module.modules() if isinstance(part, kind)]
    hooks = [part.register_forward_pre_hook(divide) for part in parts]
    with torch.no_grad():
        module(x)
    for hook in hooks:
        hook.remove()


class OnDevice:
    """A model on one device, with its inputs and outputs there."""

    def __init__(
        self, case: Case, device: str, cache: Path, options: Mapping[str, str] | None = None
    ) -> None:
        """
        Args:
            cache: folder of the compiled kernels.
            options: of the engine.

        Raises:
            CoexecError: the device does not run the model, or has no such option.
        """
        begin_s = time.perf_counter()
        engine = device.partition("/")[2]
        settings = Settings([device], cache=cache, engine_options={engine: options or {}})
        work = PlanningContext(case.path, settings)
        read_s = time.perf_counter()
        self.graph = work.model.graph
        self.load_s = time.perf_counter() - read_s
        """Seconds in which the model was read."""
        self._engine = work.devices[0].engine
        (module,) = work.compiled(work.plan("single")).modules
        self.program: Any = self._engine.compile(module)
        self._feeds = case.feeds
        self._inputs = {t.name: self._engine.upload(self._feeds[t.name]) for t in module.inputs}
        self._outputs = {t.name: self._engine.allocate(t, True) for t in module.outputs}
        self._bound = self.program.bind(self._inputs, self._outputs)
        answer = self.request()
        self.start_s = time.perf_counter() - begin_s - self.load_s
        """Seconds from here to the first answer, without reading the model."""
        expected = case.expected
        self.difference = max(worst_difference(a, expected[name]) for name, a in answer.items())
        """Of the first answer from ONNX Runtime's, relative to the largest value."""

    def request(self) -> dict[str, Array]:
        """The answer to the inputs, which come from the host; valid until the next call."""
        for name, tensor in self._inputs.items():
            self._engine.upload(self._feeds[name], tensor)
        self._bound.run()
        return {name: self._engine.download(tensor) for name, tensor in self._outputs.items()}

    def on_gpu(self, order: Dependencies | None = None) -> Callable[[], float]:
        """A function that launches the graph of CUDA's engine once and returns its seconds by the
        clock of the GPU; inputs and outputs stay on the GPU.

        Args:
            order: of the launches; by default that of the engine.
        """
        own: CudaProgram = self.program
        program = own if order is None else CudaProgram(own.name, own.build, own.memory, order)
        graph = program.memory.context.graph(program.nodes({**self._inputs, **self._outputs}))

        def run(_kept: CudaProgram = program) -> float:  # it owns the memory between the launches
            return seconds_of(program.memory.context, graph)

        return run


def options_of(precision: str) -> dict[str, str]:
    """Options of the CUDA engine. float32 is what it computes in without options."""
    return {} if precision == "float32" else {"precision": precision}


def tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main() -> None:
    options = _arguments()
    if options.child:
        print(json.dumps(_CHILDREN[options.child](Case(*options.models), options)))
        return
    rows: list[dict[str, Any]] = []

    def add(row: dict[str, Any]) -> None:
        rows.append(row)
        tell("  ".join(f"{key}: {value}" for key, value in row.items()))

    cases = list(
        prepared(
            expanded(options.models),
            options.folder,
            options.jobs,
            lambda name, why: add({"model": name, "why": why}),
        )
    )
    if not options.only_export:
        describe("gpu:0/cuda")  # so that the engine's trial is in no start
        measure = _equal if options.runs else _row
        for case in cases:
            add({"model": case.name} | measure(case, options))
    show("exports on an NVIDIA GPU", rows, options.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(NETWORKS), help="names, files, folders")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the exports")
    parser.add_argument("--jobs", type=int, default=max(1, len(usable_cores()) // 2))
    parser.add_argument("--only-export", action="store_true", help="measure nothing")
    parser.add_argument("--runs", type=int, default=0, help="compare the answers of so many runs")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of a process")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    parser.add_argument("--child", choices=_CHILDREN, help=argparse.SUPPRESS)
    parser.add_argument("--cache", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def _row(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as cache:
        first = _apart("start", case, cache, options)
        return first if "why" in first else first | _apart("figures", case, cache, options)


def _equal(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as cache:
        return _apart("runs", case, cache, options)


def _apart(child: str, case: Case, cache: str, options: argparse.Namespace) -> dict[str, Any]:
    """What a separate process measures; the reason if it cannot."""
    command = [sys.executable, __file__, *case, "--child", child, "--cache", cache]
    command += ["--runs", str(options.runs)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=options.limit)
    except subprocess.TimeoutExpired:
        return {"why": f"it takes longer than {options.limit:.0f} s (--limit)"}
    if done.returncode:
        return {"why": (done.stderr.strip().splitlines() or [f"code {done.returncode}"])[-1]}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _start(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    network = OnDevice(case, "gpu:0/cuda", options.cache)
    return {"load, s": round(network.load_s, 3), "first start, s": round(network.start_s, 3)}


def _in_each_precision(
    case: Case, cache: Path, measure: Callable[[str, OnDevice], dict[str, Any]]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for precision in LIMITS:
        try:
            network = OnDevice(case, "gpu:0/cuda", cache, options_of(precision))
            found |= measure(precision, network)
        except CoexecError as error:
            found[precision] = first_line(error)
    return found


def _figures(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """The second start, differences in each precision, and times in two orders."""
    wrong = []

    def measure(precision: str, network: OnDevice) -> dict[str, Any]:
        if not network.difference <= LIMITS[precision]:
            wrong.append(precision)
        difference = {precision: f"{network.difference:.1e}"}
        if precision != "float32":
            return difference
        return {"warm start, s": round(network.start_s, 3)} | difference | _orders(network)

    found = _in_each_precision(case, options.cache, measure)
    return found | {"too far off": ", ".join(wrong)}


def _orders(network: OnDevice) -> dict[str, Any]:
    build = network.program.build
    orders = {
        "branches, ms": Dependencies.of(build),
        "chain, ms": Dependencies.chain(len(build.launches)),
    }
    runs = [network.on_gpu(order) for order in orders.values()]
    rounds = [[run() for run in runs] for _ in range(_WARM_UP + _ROUNDS)][_WARM_UP:]
    side_by_side, chain = (1e3 * statistics.median(times) for times in zip(*rounds, strict=True))
    values = (round(side_by_side, 4), round(chain, 4))
    gain = {"chain / branches": round(chain / side_by_side, 3)}
    return dict(zip(orders, values, strict=True)) | gain


def _runs(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """The number of runs whose answers differ from the first in any bit."""

    def measure(precision: str, network: OnDevice) -> dict[str, Any]:
        def answer() -> list[bytes]:
            return [array.tobytes() for array in network.request().values()]

        first = answer()
        others = sum(answer() != first for _ in range(options.runs - 1))
        return {precision: f"{others} of {options.runs} differ"}

    return _in_each_precision(case, options.cache, measure)


_CHILDREN: Mapping[str, Any] = {"start": _start, "figures": _figures, "runs": _runs}


if __name__ == "__main__":
    main()
