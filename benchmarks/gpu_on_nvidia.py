"""An NVIDIA GPU through OpenCL against PyTorch's eager mode and CUDA graphs, and the CPU.

All rivals run in turns in one process, at 30 requests a second and in a loop. Inputs and outputs of
rivals on the GPU stay on the GPU; a run ends when its last kernel has ended. PyTorch runs
torchvision's module of the same architecture. coexec's outputs are compared with those of ONNX
Runtime for the same model. Needs an NVIDIA GPU with its OpenCL driver, and PyTorch with
torchvision.

    python benchmarks/gpu_on_nvidia.py [MODEL ...] [--kernels 10]
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl
from common import by_figure, in_turns, show

from coexec.engines.registry import open_devices
from coexec.model.difference import worst_difference
from coexec.model.inputs import random_inputs
from coexec.selection.planning_context import PlanningContext
from coexec.settings import Settings

MODELS = {
    "squeezenet": "squeezenet1_0",
    "mobilenet_v2": "mobilenet_v2",
    "inception_v3": "inception_v3",
    "resnet34": "resnet34",
    "vgg16": "vgg16",
}
"""The zoo's name of each model, with torchvision's name."""


def main() -> None:
    options = _arguments()
    rows = [row for name in options.models for row in _compare(name, options)]
    show("NVIDIA GPU, device to device", rows, options.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--precision", default="fp32", choices=["fp32", "fp16"])
    parser.add_argument("--tuning", default="fast", choices=["none", "fast", "exhaustive"])
    parser.add_argument("--kernels", type=int, default=0, help="print this many slowest kernels")
    parser.add_argument("--alone", action="store_true", help="without the baselines")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _compare(name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    options_of = {"precision": options.precision, "waiting": "active", "tuning": options.tuning}
    folder = tempfile.mkdtemp()
    work = PlanningContext(
        f"zoo:{name}",
        Settings(["gpu:0/opencl"], cache=folder, engine_options={"opencl": options_of}),
    )
    feeds = random_inputs(work.model.graph)
    kernels = Path(tempfile.gettempdir()) / "coexec-kernels"  # not deleted, unlike the folder
    kernels.mkdir(exist_ok=True)
    (opened,) = open_devices(["gpu:0/opencl"], work.settings.engine_options, kernels)
    device = opened.engine
    started_s = time.perf_counter()
    compiled = work.compiled(work.plan("single"))
    program: Any = device.compile(compiled.modules[0])
    print(f"{name}: compiled in {time.perf_counter() - started_s:.1f} s", file=sys.stderr)
    inputs = {t.name: device.upload(feeds[t.name]) for t in compiled.inputs}
    outputs = {t.name: device.allocate(t) for t in compiled.outputs}
    bound = program.bind(inputs, outputs)
    bound.run()
    reference = work.user_model.reference(feeds)
    worst = max(worst_difference(device.download(outputs[n]), r) for n, r in reference.items())
    if options.kernels:
        _print_kernels(bound, program, options.kernels)
    rivals: dict[str, Callable[[], Any]] = {"coexec": bound.run}
    if not options.alone:
        rivals |= _torch_baselines(name, feeds) | _cpu_baseline(work, feeds)
    outcome = in_turns(rivals, options.rounds)
    ratios = {f"/ {rival}": ("coexec", rival) for rival in rivals if rival != "coexec"}
    for row in by_figure(outcome, ratios):
        head = {"model": name, "difference": f"{worst:.1e}"}
        yield head | row | {"launches": len(program.launches)}


def _torch_baselines(name: str, feeds: Any) -> dict[str, Callable[[], Any]]:
    import torch
    import torchvision

    kwargs = {"aux_logits": True} if name == "inception_v3" else {}
    module = getattr(torchvision.models, MODELS[name])(weights=None, **kwargs).eval().cuda()
    x = torch.from_numpy(np.array(next(iter(feeds.values())))).cuda()
    baselines: dict[str, Callable[[], Any]] = {}

    def eager() -> None:
        with torch.inference_mode():
            module(x)
        torch.cuda.synchronize()

    def graph_with(tf32: bool) -> Callable[[], None]:
        torch.backends.cudnn.allow_tf32 = tf32
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.benchmark = True
        stream = torch.cuda.Stream()
        with torch.inference_mode(), torch.cuda.stream(stream):
            for _ in range(5):
                module(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(), torch.cuda.graph(graph):
            module(x)

        def replay() -> None:
            graph.replay()
            torch.cuda.synchronize()

        return replay

    baselines["graph TF32"] = graph_with(True)
    baselines["graph fp32"] = graph_with(False)
    baselines["eager"] = eager
    return baselines


def _cpu_baseline(work: PlanningContext, feeds: Any) -> dict[str, Callable[[], Any]]:
    session = work.user_model.onnx_runtime(threads=min(16, os.cpu_count() or 1))
    return {"CPU": lambda: session.run(None, dict(feeds))}


def _print_kernels(bound: Any, program: Any, count: int) -> None:
    queue = cl.CommandQueue(
        bound.calls[0][0].context, properties=cl.command_queue_properties.PROFILING_ENABLE
    )
    rounds = []
    for _ in range(10):
        events = [cl.enqueue_nd_range_kernel(queue, *call) for call in bound.calls]
        queue.finish()
        rounds.append([(e.profile.end - e.profile.start) * 1e-9 for e in events])
    medians = [statistics.median(column) for column in zip(*rounds, strict=True)]
    print(f"kernels alone: {1e3 * sum(medians):.3f} ms in {len(medians)} launches")
    order = sorted(range(len(medians)), key=lambda i: -medians[i])
    for i in order[:count]:
        launch = program.launches[i]
        print(
            f"  {1e6 * medians[i]:8.1f} us  {launch.name:14} {launch.grid} {launch.group} "
            f"{program.tasks[i]}"
        )


if __name__ == "__main__":
    main()
