"""Case number ``index`` of a campaign: a random operator of a random family."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tests.helpers.campaign import elementwise, moving, reducing, windows
from tests.helpers.campaign.draws import Draws
from tests.helpers.campaign.probe import Probe

FAMILIES: dict[Callable[[Draws], Probe], int] = (
    windows.FAMILIES | elementwise.FAMILIES | moving.FAMILIES | reducing.FAMILIES
)
_FAMILIES = [family for family, share in FAMILIES.items() for _ in range(share)]


def probe(seed: int, index: int) -> Probe:
    """Case ``index`` of the campaign; equal arguments give equal cases on every machine."""
    draws = Draws(seed, index)
    with np.errstate(all="ignore"):
        return replace(draws.pick(_FAMILIES)(draws), index=index)
