"""Shared objects: the operations that need most memory first."""

from collections.abc import Sequence

from coexec.plan.memory import Assignment, Record, alive_at

__all__ = ["assign"]


def assign(records: Sequence[Record]) -> Assignment:
    """Place the tensors of the operation with most bytes alive, the largest first, then the next.

    Source: Pisarchyk and Lee (arXiv:2001.03288), greedy by breadth; TensorFlow Lite's GPU delegate.
    A tensor takes the smallest object that is free all its life and large enough; otherwise the
    largest free one, which grows; otherwise a new one.

    Of operations with equally many bytes, the later comes first. This order gives the known totals
    of MobileNet v1, v2 and VGG-16; with the other order VGG-16, PoseNet and YOLOv2 get smaller,
    NASNet-A larger.

    Promises at most naive's total; with by_size_improved the smallest of this family on most
    networks. O(n^2).
    """
    object_of = [-1] * len(records)
    sizes: list[int] = []
    inside: list[list[Record]] = []
    for i in _by_breadth(records):
        record, size = records[i], records[i].size_bytes
        free = [o for o, tensors in enumerate(inside) if not any(map(record.alive_with, tensors))]
        large_enough = [o for o in free if sizes[o] >= size]
        if large_enough:
            target = min(large_enough, key=sizes.__getitem__)
        elif free:
            target = max(free, key=sizes.__getitem__)
            sizes[target] = size
        else:
            target = len(sizes)
            sizes.append(size)
            inside.append([])
        object_of[i] = target
        inside[target].append(record)
    return Assignment.shared(object_of, sizes)


def _by_breadth(records: Sequence[Record]) -> list[int]:
    """All tensors in the order in which they are placed."""
    alive = alive_at(records)
    breadth = {op: sum(records[i].size_bytes for i in tensors) for op, tensors in alive.items()}
    order: dict[int, None] = {}
    for op in sorted(alive, key=lambda op: (-breadth[op], -op)):
        largest_first = sorted(alive[op], key=lambda i: -records[i].size_bytes)
        order |= dict.fromkeys(largest_first)  # a tensor that is listed already keeps its place
    return list(order)
