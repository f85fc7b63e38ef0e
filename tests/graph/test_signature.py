"""What tells tasks apart, and what tells them apart at all sizes."""

from dataclasses import replace

import pytest

from coexec.graph.graph import Operator, Scalars, Task, Tensor
from coexec.graph.signature import family_of, signature_of

Shape = tuple[int, ...]


def task(
    kind: str,
    shapes: dict[str, Shape],
    constants: dict[int, tuple[int, ...]] | None = None,
    dtype: str = "float32",
    **attributes: Scalars,
) -> tuple[str, str]:
    """Signature and family of an operator. Weights begin with "w"; the last is the result."""
    tensors = {n: Tensor(n, s, dtype, n.startswith("w")) for n, s in shapes.items()}
    *inputs, output = shapes
    op = Operator(kind, tuple(inputs), (output,), attributes, constants or {})
    found = Task("t", (op,), tuple(inputs), (), (output,), signature_of([op], tensors), 0)
    return found.signature, family_of(found, tensors)


def conv(size: int, filters: int = 8, batch: int = 1, **words: Scalars) -> tuple[str, str]:
    shapes = {
        "x": (batch, 4, size, size),
        "w": (filters, 4, 3, 3),
        "y": (batch, filters, size, size),
    }
    return task("Conv", shapes, pads=(1, 1, 1, 1), **words)


def test_a_signature_has_all_sizes() -> None:
    assert conv(10)[0] == "Conv(1x4x10x10, 8x4x3x3){pads=1x1x1x1} -> 1x8x10x10"


def test_a_family_has_those_of_weights_alone() -> None:
    assert conv(10)[1] == conv(20)[1] == "Conv(1x?x?x?, 8x4x3x3){pads=1x1x1x1} -> 1x?x?x?"


@pytest.mark.parametrize(
    "other",
    [conv(10, filters=16), conv(10, dtype="float16"), conv(10, group=2), conv(10, batch=2)],
)
def test_other_tasks_are_of_other_families(other: tuple[str, str]) -> None:
    """A size of 1 counts: operators broadcast along it."""
    assert other[1] != conv(10)[1]


def test_sizes_that_are_constants_do_not_count_but_scales_and_axes_do() -> None:
    def resized(size: int, position: int, values: tuple[int, ...]) -> str:
        shapes = {"x": (1, 4, size, size), "y": (1, 4, 2 * size, 2 * size)}
        return task("Resize", shapes, {position: values})[1]

    assert resized(8, 3, (1, 4, 16, 16)) == resized(10, 3, (1, 4, 20, 20))
    assert resized(8, 2, (1, 1, 2, 2)) != resized(8, 2, (1, 1, 4, 4))
    squeezed = [task("Squeeze", {"x": (1, 4, 1), "y": (1, 4)}, {1: (axis,)}) for axis in (0, 2)]
    assert squeezed[0][1] != squeezed[1][1]


def test_an_opaque_task_is_equal_to_itself_alone() -> None:
    plain = Task("t", (), (), (), (), "opaque 0123", 0)
    assert family_of(replace(plain, opaque="its shape depends on data"), {}) == "opaque 0123"
