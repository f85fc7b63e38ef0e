"""A cluster in the test bed: machines with a network of their own, one of which dies."""

import argparse
from collections.abc import Iterator
from typing import Any

import pytest
from bed_probe import why_not
from cluster_runs import bed_of

pytestmark = [
    pytest.mark.alone,
    pytest.mark.long,
    pytest.mark.system,
    pytest.mark.skipif(bool(why_not()), reason=f"no test bed here: {why_not()}"),
]

OPTIONS = argparse.Namespace(gflops=[8.0, 8.0, 8.0], mbit=50.0, medium="ports")


def test_a_machine_is_killed_in_the_middle_of_a_stream() -> None:
    events: list[dict[str, Any]] = []

    with bed_of(OPTIONS) as (bed, ask):
        killing = iter([bed.machines[-1]])

        def told(event: dict[str, Any]) -> None:
            events.append(event)
            if event["event"] == "answered" and event["count"] > 20:
                kill_next(bed, killing)

        done = ask({"model": "zoo:squeezenet", "frames": 60}, told)
    assert done["event"] == "done", done
    assert done["answered"] == 60
    assert done["worst"] < 1e-4
    assert done["most_inside"] <= 2 * 5 + 1
    assert any("m2" in event["why"] for event in events if event["event"] == "changed")
    assert done["machines"] and "m2" not in done["machines"]


def kill_next(bed: Any, names: Iterator[str]) -> None:
    for name in names:
        bed.kill(name)
        return
