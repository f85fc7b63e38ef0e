"""The registry of operators: kernel, rule, test cases and page agree. Needs no OpenCL."""

import importlib
import pkgutil
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from onnx import helper

from coexec.engines import kernels
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.border import BORDERS
from coexec.engines.kernels.building import build
from coexec.engines.kernels.operators import KERNELS, why_not
from coexec.graph.graph import Graph
from coexec.graph.rules import RULES
from tests.helpers import computing_cases, layout_cases
from tests.helpers.campaign.operators import probe
from tests.helpers.gpu_networks import module_of
from tests.helpers.onnx_models import direct, model_of, tensor
from tests.helpers.operator_cases import Case
from tests.helpers.operators_page import PAGE, page

OPERATORS = sorted(KERNELS.keys() - set(BORDERS))

few = settings(
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=25,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)

Graphs = Mapping[str, list[Graph]]


@pytest.fixture(scope="module")
def graphs() -> Graphs:
    """Graphs of one operator, by its type, of the random cases that are compared with ONNX
    Runtime."""
    graphs_by_type: dict[str, list[Graph]] = defaultdict(list)
    for family in (computing_cases.FAMILIES | layout_cases.FAMILIES).values():

        @few
        @given(family)
        def add(case: Case) -> None:
            graphs_by_type[case.op_type].append(model_of(case).graph)

        add()
    return graphs_by_type


@pytest.fixture(scope="module")
def campaign() -> set[str]:
    """Types of the first operators of the campaign."""
    return {probe(1, index).op_type for index in range(2500)}


def test_every_kernel_file_is_in_the_registry() -> None:
    for file in pkgutil.iter_modules(kernels.__path__, f"{kernels.__name__}."):
        rows = getattr(importlib.import_module(file.name), "KERNELS", {})
        assert rows.items() <= KERNELS.items(), file.name


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_with_a_kernel_can_be_cut_or_says_why_not(name: str) -> None:
    rule = RULES[name]
    assert bool(rule.along) != bool(rule.why_whole)


def test_an_operator_with_a_kernel_has_random_cases(graphs: Graphs, campaign: set[str]) -> None:
    assert [name for name in OPERATORS if name not in graphs.keys() | campaign] == []


def test_kernels_compute_a_random_case_of_each_operator(graphs: Graphs) -> None:
    def computed(graph: Graph) -> bool:
        return all(why_not(op, graph.tensors) is None for t in graph.tasks for op in t.operators)

    refused = [
        name
        for name, examples in graphs.items()
        if name in KERNELS and not any(map(computed, examples))
    ]
    assert refused == []


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (
            Case("Gather", ((2, 3), (1,)), {}, 17, {0: "int32", 1: "int64"}),
            "no integer can say that one is out of range",
        ),
        (Case("Conv", ((1, 2, 3, 3), (2, 2, 1, 1))), "weights of Conv are computed"),
        (Case("ReduceMean", ((2, 3),), {"axes": [1]}, 13, {0: "int64"}), "ReduceMean of int64"),
        (Case("LogSoftmax", ((2, 3),), {}, 17, {0: "float64"}), "LogSoftmax of float64"),
        (Case("LRN", ((1, 2, 3, 3),), {"size": 3}), "no kernel for LRN: only networks of before"),
    ],
)
def test_what_no_kernel_computes_is_refused_with_the_reason(case: Case, reason: str) -> None:
    graph = model_of(case).graph
    assert reason in (why_not(graph.tasks[0].operators[0], graph.tensors) or "")


@pytest.mark.parametrize("name", OPERATORS)
def test_the_words_of_a_kernel_are_of_its_function(name: str) -> None:
    """A kernel that may refuse an operator says so on the page, and no other does."""
    kernel = KERNELS[name]
    assert bool(kernel.refuses) == (kernel.why_not is not KERNELS["Concat"].why_not)


def test_the_words_of_a_rule_are_of_its_axes(graphs: Graphs) -> None:
    """A rule without axes has none in any case; others have one in some, of all their operators."""
    axes_by_along: dict[tuple[str, str], list[tuple[int, ...]]] = defaultdict(list)
    for name, examples in graphs.items():
        for task, tensors in ((g.tasks[0], g.tensors) for g in examples):
            rule = RULES[name]
            axes_by_along[rule.along, rule.why_whole] += [rule.axes(task.operators[0], tensors)]
    for (along, why_whole), cases in axes_by_along.items():
        assert any(cases) == bool(along), along or why_whole


def test_the_page_is_of_the_registry() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(), "write it again: python -m tests.helpers.operators_page"


def test_another_table_of_kernels_takes_the_place_of_the_registry() -> None:
    """An engine of another language has one. It decides what is refused and what is fused."""
    nodes = [
        helper.make_node("Softmax", ["x"], ["p"], "softmax"),
        helper.make_node("Neg", ["p"], ["y"], "neg"),
    ]
    model = direct(nodes, [tensor("x", (2, 5))], ["y"], {})
    module, arch = module_of(model), Architecture("nvidia", 4)
    apart = {**KERNELS, "Neg": replace(KERNELS["Neg"], joins="nothing")}
    fused, separate = (build(module, arch, kernels=table).launches for table in (KERNELS, apart))
    assert [launch.name for launch in fused] == ["softmax"]
    assert [launch.name for launch in separate] == ["softmax", "elementwise"]
    (*_, neg) = (op for task in model.graph.tasks for op in task.operators)
    without = {name: kernel for name, kernel in KERNELS.items() if name != "Neg"}
    assert why_not(neg, model.graph.tensors, kernels=without) == "there is no kernel for Neg"
    with pytest.raises(ValueError, match="no kernel for Neg"):
        build(module, arch, kernels=without)


def test_the_guide_prints_the_text_of_a_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    guide = (PAGE.parent / "guides" / "kernel.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    exec(code, {})
    assert "__kernel void softmax(" in capsys.readouterr().out
