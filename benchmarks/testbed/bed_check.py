"""Whether a test bed does what is asked of it: bandwidths, and shares of a core by quota."""

import sys
from collections.abc import Iterator
from pathlib import Path

from bandwidth import mbits
from bed import MEDIA, Testbed
from bed_probe import why_not, why_not_quota

__all__ = ["LEAST", "tables"]

LEAST = 0.9
"""Part of the rate that has to arrive. Headers of frames take 0.045 of it, acknowledgements on a
shared medium 0.02."""
_SHARES = (0.5, 0.07)
_PAIR, _OTHER = ("m0", "m1"), ("m2", "m3")


def tables(mbit: float, seconds: float) -> Iterator[tuple[str, bool]]:
    """Lines to print, each with whether it is as asked; what cannot be measured is as asked."""
    for medium in MEDIA:
        if reason := why_not(medium):
            yield f"{medium}: skipped, {reason}", True
            continue
        with Testbed(4, mbit, medium) as bed:
            [alone] = mbits(bed, [_PAIR], seconds)
            yield _line(f"{medium}: one pair", [alone], mbit)
            both = mbits(bed, [_PAIR, _OTHER], seconds)
            yield _line(
                f"{medium}: two pairs at once", both, mbit / 2 if medium == "shared" else mbit
            )
    yield from _quotas(seconds)


def _line(what: str, found: list[float], asked: float) -> tuple[str, bool]:
    good = all(LEAST * asked <= rate <= asked for rate in found)
    rates = " and ".join(f"{rate:.1f}" for rate in found)
    return f"{what:26} {rates} Mbit/s of {asked:g}{'' if good else ', NOT as asked'}", good


def _quotas(seconds: float) -> Iterator[tuple[str, bool]]:
    """Not pace: pace is kept by the programs that compute."""
    if reason := why_not_quota():
        yield f"CPU quota: skipped, {reason}", True
        return
    program = str(Path(__file__).with_name("burn.py"))
    with Testbed(1) as bed:
        for share in _SHARES:
            bed.limit("m0", share)
            burning = bed.run("m0", [sys.executable, program, str(seconds)], stdout=-1, text=True)
            used, pause_s = map(float, burning.communicate()[0].split())
            good = abs(used - share) < 0.2 * share
            text = (
                f"{'CPU quota (cgroup v1)':26} {used:.3f} of a core, asked {share:g}; "
                f"longest pause {1e3 * pause_s:.0f} ms"
            )
            yield text + ("" if good else ", NOT as asked"), good
