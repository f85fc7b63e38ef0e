"""Measuring between the requests of another process."""

import threading
import time

import pytest

from coexec.profiling.activity import Quiet, Traffic, undisturbed
from tests.helpers.patience import ENOUGH_S


def test_quiet_waits_for_a_gap_between_requests() -> None:
    traffic = Traffic()
    traffic.begin()
    quiet = Quiet(traffic.publish())
    waited = threading.Event()

    def wait() -> None:
        quiet.wait()
        waited.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not waited.wait(0.3)  # a request is under way
    traffic.end()
    assert waited.wait(ENOUGH_S)
    thread.join()
    traffic.withdraw()


def test_who_never_rests_is_measured_beside() -> None:
    traffic = Traffic()
    slept: list[float] = []
    quiet = Quiet(traffic.publish(), patience_s=1.0, sleep=slept.append)
    traffic.begin()
    quiet.wait()
    assert sum(slept) == pytest.approx(1.0, rel=0.1)
    assert not quiet.disturbed(0.0)  # nor is anything measured again
    traffic.withdraw()


def test_what_a_request_disturbs_is_measured_again() -> None:
    traffic = Traffic()
    quiet = Quiet(traffic.publish())
    measured: list[float] = []

    def measure() -> int:
        measured.append(time.monotonic())
        if len(measured) < 3:
            traffic.begin()
            traffic.end()
        return len(measured)

    assert undisturbed(measure, quiet) == 3
    assert undisturbed(lambda: 7, None) == 7
    traffic.withdraw()
    with pytest.raises(OSError):
        Quiet(traffic.publish() + "-gone")
    traffic.withdraw()
