"""How parallel a graph is: its width, and its longest path."""

from collections.abc import Callable

from coexec.graph.graph import Graph, Task


def critical_path(graph: Graph, weight: Callable[[Task], float]) -> tuple[Task, ...]:
    """The path of tasks with the largest sum of weights, starting at an input."""
    best: dict[str, float] = {}
    before: dict[str, Task | None] = {}
    for task in graph.tasks:
        last = max(graph.predecessors[task.name], key=lambda p: best[p.name], default=None)
        before[task.name] = last
        best[task.name] = weight(task) + (0.0 if last is None else best[last.name])
    end = max(graph.tasks, key=lambda t: best[t.name], default=None)
    path: list[Task] = []
    while end is not None:
        path.append(end)
        end = before[end.name]
    return tuple(reversed(path))


def width(graph: Graph) -> int:
    """The largest number of tasks that do not depend on each other.

    Dilworth's theorem: this antichain is as large as the smallest number of chains that cover the
    graph. A maximum matching of tasks with later tasks gives that number. O(tasks * dependent
    pairs).
    """
    index = {task.name: i for i, task in enumerate(graph.tasks)}
    below = [0] * len(graph.tasks)  # bits of all tasks that depend on one
    for task in reversed(graph.tasks):
        i = index[task.name]
        for after in graph.successors[task.name]:
            below[i] |= below[index[after.name]] | 1 << index[after.name]
    matched: dict[int, int] = {}
    for start in range(len(below)):
        _match(start, below, matched)
    return len(below) - len(matched)


def _match(start: int, below: list[int], matched: dict[int, int]) -> None:
    """Look for an augmenting path from ``start``, without recursion."""
    came_from: dict[int, int] = {}
    free = ~0
    stack = [start]
    while stack:
        task = stack.pop()
        candidates = below[task] & free
        while candidates:
            low = candidates & -candidates
            later = low.bit_length() - 1
            candidates ^= low
            free &= ~low
            came_from[later] = task
            if later not in matched:
                while True:  # flip the path back to the start
                    task = came_from[later]
                    previous = next((k for k, v in matched.items() if v == task), None)
                    matched[later] = task
                    if task == start or previous is None:
                        return
                    later = previous
            stack.append(matched[later])
