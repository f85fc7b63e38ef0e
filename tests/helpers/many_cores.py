"""Networks on sixteen cores of a Xeon, as measured there with ONNX Runtime 1.30."""

from collections.abc import Mapping

from coexec.graph.graph import Graph
from tests.helpers.graphs import make_graph

ORT_MS: Mapping[str, tuple[float, float, float, float]] = {
    "squeezenet": (9.0, 5.4, 4.0, 3.0),
    "mobilenet_v2": (6.1, 4.2, 2.9, 2.6),
    "mobilenet_v3": (5.8, 4.3, 3.4, 3.3),
    "ghostnet": (8.9, 7.8, 7.6, 8.3),
    "efficientnet_b0": (8.7, 6.4, 6.1, 5.6),
    "googlenet": (14.9, 9.4, 6.8, 5.2),
    "resnet34": (32.9, 17.8, 10.6, 7.6),
    "inception_v3": (55.3, 31.1, 18.8, 14.6),
    "densenet121": (34.5, 22.1, 15.7, 12.7),
    "vit_tiny": (19.9, 13.4, 11.4, 10.4),
    "nasnet_large": (292.0, 169.0, 116.0, 91.0),
    "lstm": (5.5, 3.1, 1.8, 1.3),
}
"""Milliseconds of a request with 2, 4, 8 and 16 threads."""
TASKS: Mapping[str, int] = {
    "squeezenet": 38,
    "mobilenet_v2": 54,
    "ghostnet": 150,
    "resnet34": 40,
    "inception_v3": 110,
    "densenet121": 240,
}
"""Number of tasks, roughly."""


def chain(model: str) -> Graph:
    """A chain of as many tasks as the network has, each of which can be divided."""
    names = [f"t{number}" for number in range(TASKS[model])]
    reads = {name: names[number - 1 : number] for number, name in enumerate(names) if number}
    return make_graph({names[0]: [], **reads}, dict.fromkeys(["x", *names], 64))


def task_rows(model: str, seconds: float, devices: int) -> list[list[float]]:
    """Seconds of each task on equal devices, each of which takes ``seconds`` for the network."""
    return [[seconds / TASKS[model]] * TASKS[model]] * devices
