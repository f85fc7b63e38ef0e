"""`docs/operators.md`: the operators that have a kernel or can be cut.

    python -m tests.helpers.operators_page    # write the page again

The rows come from `coexec.graph.rules` and `coexec.engines.kernels.operators`; a test compares the
page with them (`tests/engines/kernels/test_operators.py`).
"""

from pathlib import Path

from coexec.engines.kernels.border import BORDERS
from coexec.engines.kernels.operators import KERNELS, WITHOUT
from coexec.engines.kernels.unsupported import ALL
from coexec.graph.rules import RULES

PAGE = Path(__file__).parents[2] / "docs" / "operators.md"

_HEAD = """# Operators

What coexec knows of an operator beside its ONNX definition. This page is written by
`python -m tests.helpers.operators_page`, and a test compares it with the code.

* **OpenCL kernel**: the types of its first input that kernels compute. "all": float32, float64,
  bool and the integers of 8 to 64 bits. Operators without a kernel are rare or small: ONNX Runtime
  computes them on cores.
* **Refused**: the operators of these types that kernels do not compute, or why there is no kernel.
  Kernels also refuse empty tensors, tensors of 2^31 bytes and more, and on CPU cores operators that
  take many times ONNX Runtime's time there (`coexec.engines.kernels.operators`).
* **Can be cut along**: the axes of the output along which several devices can share it, on any
  engine (`coexec.graph.rules`). Parameters such as axes, pads and sizes have to be constant.
  Operators that are not in this table are computed whole, and have no kernel; `coexec inspect
  MODEL --device gpu:0` lists those of a model.

| operator | OpenCL kernel | refused | can be cut along |
|---|---|---|---|
"""


def page() -> str:
    """The text of the page; operators with equal facts share a row."""
    names_by_facts: dict[tuple[str, str, str], list[str]] = {}
    for name in sorted((KERNELS.keys() | WITHOUT.keys() | RULES.keys()) - set(BORDERS)):
        names_by_facts.setdefault(_facts(name), []).append(name)
    rows = (f"| {', '.join(names)} | {' | '.join(f)} |" for f, names in names_by_facts.items())
    return _HEAD + "\n".join(rows) + "\n"


def _facts(name: str) -> tuple[str, str, str]:
    kernel, rule = KERNELS.get(name), RULES.get(name)
    along = "" if rule is None else rule.along or f"none: {rule.why_whole}"
    if kernel is None:
        return "none", WITHOUT.get(name, ""), along
    types = "all" if kernel.types == ALL else " and ".join(sorted(kernel.types))
    return types, kernel.refuses, along


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
