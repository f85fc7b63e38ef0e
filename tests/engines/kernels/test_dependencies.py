"""Which launches wait for which, and memory that launches of any sequence may share."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.building import Build, build
from coexec.engines.kernels.dependencies import Dependencies, shared_buffers, uses_of
from coexec.model.load import load
from tests.helpers.gpu_networks import mixed_network, module_of
from tests.helpers.network_cases import networks
from tests.helpers.small_models import branches

GPU = Architecture("nvidia", 4, compute_units=16)


def built(model: object) -> Build:
    return build(module_of(model), GPU)  # type: ignore[arg-type]


def after(order: Dependencies, first: int, second: int) -> bool:
    return bool(order.before[second] >> first & 1)


def check(found: Build, order: Dependencies) -> None:
    """Launches that disturb each other have an order, and tensors that share a buffer, too."""
    uses = [uses_of(launch, found.aliases) for launch in found.launches]
    for first, second in combinations(range(len(uses)), 2):
        disturbed = any(
            a.root == b.root and a.disturbs(b) for a in uses[first] for b in uses[second]
        )
        assert after(order, first, second) or not disturbed
    buffer_of, sizes = shared_buffers(found, order)
    users = {
        scratch.name: {n for n, of in enumerate(uses) for use in of if use.root == scratch.name}
        for scratch in found.scratch
    }
    for scratch in found.scratch:
        assert sizes[buffer_of[scratch.name]] >= scratch.size_bytes
    for a, b in combinations(found.scratch, 2):
        if buffer_of[a.name] == buffer_of[b.name]:
            one, other = users[a.name], users[b.name]
            assert all(after(order, i, j) for i in one for j in other) or all(
                after(order, j, i) for i in one for j in other
            )


@given(st.data())
def test_launches_that_disturb_each_other_have_an_order(data: st.DataObject) -> None:
    found = built(data.draw(networks()))
    check(found, Dependencies.of(found))
    check(found, Dependencies.chain(len(found.launches)))


def test_all_variants_of_kernels_have_an_order() -> None:
    found = built(load(mixed_network()))
    check(found, Dependencies.of(found))


def test_branches_do_not_wait_for_each_other() -> None:
    order = Dependencies.of(built(load(branches(width=3))))
    starts = [n for n, waits in enumerate(order.waits) if waits == (0,)]
    assert len(starts) == 3
    assert not any(after(order, a, b) for a, b in combinations(starts, 2))


def test_what_follows_from_other_waits_is_left_out() -> None:
    order = Dependencies.from_needs([set(), {0}, {0, 1}, {0, 2}])
    assert order.waits == ((), (0,), (1,), (2,))
    assert order.before == (0, 0b1, 0b11, 0b111)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_chain_is_one_launch_after_the_other(count: int) -> None:
    assert Dependencies.chain(count).waits == tuple((n - 1,) if n else () for n in range(count))
