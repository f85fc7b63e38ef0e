"""The test bed of `benchmarks/testbed`: it does what is asked, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import bed_tags
import pytest
import testbed as program
from bandwidth import mbits, reaches
from bed import Medium, Testbed
from bed_probe import probe, why_not, why_not_quota
from host_commands import command

from coexec.errors import ExecutionError, UsageError
from tests.helpers.patience import ENOUGH_S

REASON = why_not("ports")
pytestmark = [
    pytest.mark.alone,
    pytest.mark.system,
    pytest.mark.skipif(bool(REASON), reason=f"no test bed here: {REASON}"),
]
CLI = Path(program.__file__)
KILLS = [
    pytest.param(number, after_s, marks=[] if after_s == 0.05 else [pytest.mark.long])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
    for after_s in (0.0, 0.02, 0.05, 0.1, 0.2)
]


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """No test leaves anything of this process's."""
    yield
    assert not [tag for tag in bed_tags.standing() if tag.pid == os.getpid()]


@pytest.fixture(params=["ports", "shared"])
def bed(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    if reason := why_not(request.param):
        pytest.skip(f"no medium {request.param!r}: {reason}")
    with Testbed(4, mbit=20, medium=request.param) as made:
        yield made


def test_bandwidths_are_as_asked(bed: Testbed) -> None:
    pairs = [("m0", "m1"), ("m2", "m3")]
    [alone] = mbits(bed, pairs[:1], 0.5)
    assert 0.6 < alone / bed.mbit < 1.1
    both = sum(mbits(bed, pairs, 0.5))
    of_one_medium = both / bed.mbit
    assert of_one_medium < 1.1 if bed.medium == "shared" else of_one_medium > 1.2


def test_a_cut_link_carries_nothing_until_it_is_mended(bed: Testbed) -> None:
    assert reaches(bed, "m0", "m1", ENOUGH_S)
    bed.cut("m1")
    assert not reaches(bed, "m0", "m1", 0.3)
    assert reaches(bed, "m0", "m2", ENOUGH_S)
    bed.mend("m1")
    assert reaches(bed, "m0", "m1", ENOUGH_S)


@pytest.mark.sampled(2)
def test_a_slow_link_is_slow_until_it_is_mended(bed: Testbed) -> None:
    bed.slow("m1", 2)
    assert mbits(bed, [("m0", "m1"), ("m1", "m0")], 0.5) < [4, 4]
    bed.mend("m1")
    assert mbits(bed, [("m0", "m1")], 0.5) > [8]


def test_a_killed_machine_has_no_processes_and_can_start_new_ones() -> None:
    with Testbed(["a", "b"]) as bed:
        # One that leaves its parent, its session and its signals behind.
        script = "trap '' TERM INT HUP; setsid sleep 60 & echo; wait"
        mine = bed.run("a", ["sh", "-c", script], stdout=subprocess.PIPE)
        others = bed.run("b", ["sleep", "60"])
        assert mine.stdout is not None and mine.stdout.readline()
        bed.kill("a")
        assert mine.wait(ENOUGH_S) == -signal.SIGKILL
        assert others.poll() is None
        assert bed.run("a", ["true"]).wait(ENOUGH_S) == 0
        mine.stdout.close()
    assert others.wait(ENOUGH_S) == -signal.SIGKILL


def test_two_test_beds_stand_beside_each_other() -> None:
    with Testbed(2) as first, Testbed(2) as second:
        assert first.address("m1") == second.address("m1")
        second.cut("m1")
        assert reaches(first, "m0", "m1", ENOUGH_S)
    assert not first.folder.exists()


def test_a_driver_of_its_own_has_a_free_port() -> None:
    with Testbed(["a", "b"], mbit=5, driver="user") as bed:
        assert bed.machines == ("a", "b", "user")
        assert bed.driver == "user"
        assert mbits(bed, [("user", "a")], 0.5) < [6]


def test_a_failing_block_takes_everything_down() -> None:
    with pytest.raises(ZeroDivisionError), Testbed(2) as bed:
        bed.run("m0", ["sleep", "60"])
        raise ZeroDivisionError
    assert not bed.folder.exists()


def test_a_quota_limits_all_processes_of_a_machine() -> None:
    if reason := why_not_quota():
        pytest.skip(f"no CPU quota: {reason}")
    burn = [sys.executable, str(CLI.with_name("burn.py")), "0.5"]
    with Testbed(1) as bed:
        bed.limit("m0", 0.2)
        both = [bed.run("m0", burn, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        shares = [float(one.communicate()[0].split()[0]) for one in both]
        assert 0.1 < sum(shares) < 0.4
        with pytest.raises(UsageError, match="give more than 0"):
            bed.limit("m0", 0)


def test_a_probe_leaves_nothing_and_finds_the_same_twice() -> None:
    assert probe() == probe()


@pytest.mark.parametrize(
    ("machines", "mbit", "medium", "said"),
    [
        ([], 50, "ports", "give 1 or more"),
        (["Pi 4"], 50, "ports", "'Pi 4'"),
        (["switch"], 50, "ports", "'switch'"),
        (["a", "a"], 50, "ports", "a, a"),
        (2, 0, "ports", "0 Mbit/s"),
        (2, 50, "wifi", "ports, shared"),
    ],
)
def test_wrong_arguments_are_refused(
    machines: int | list[str], mbit: float, medium: Medium, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        Testbed(machines, mbit, medium)
    with Testbed(1) as bed, pytest.raises(UsageError, match="m9"):
        bed.cut("m9")


@pytest.mark.parametrize(("number", "after_s"), KILLS)
def test_a_signal_in_the_middle_of_up_leaves_nothing(number: int, after_s: float) -> None:
    mark = uuid.uuid4().hex
    child = started("up", "--machines", "3", mark=mark)
    tag = first_sign_of(child)
    time.sleep(after_s)
    child.send_signal(number)
    _, said = child.communicate(timeout=ENOUGH_S)
    if number == signal.SIGKILL:
        assert child.returncode == -number
        assert verb("down").returncode == 0
    else:
        assert child.returncode == 128 + number, said
        assert "Traceback" not in said
    assert tag not in bed_tags.standing()
    assert not tag.folder.exists()
    assert marked(mark) == []


def test_down_spares_what_has_an_owner_unless_it_is_named() -> None:
    child = started("up", "--machines", "2", mark=uuid.uuid4().hex)
    assert child.stdout is not None
    tag = first_sign_of(child)
    child.stdout.readline()
    assert "stays" in verb("down").stdout
    tags = [str(tag) for tag in bed_tags.standing()]
    done = verb("exec", "--tag", str(tag), "m1", "cat", "/proc/net/fib_trie")
    assert "10.77.0.2" in done.stdout
    assert "m7" in verb("exec", "--tag", str(tag), "m7", "true").stderr
    assert verb("down", str(tag)).returncode == 0
    assert child.wait(ENOUGH_S) == 128 + signal.SIGTERM
    child.communicate()
    assert tags.count(str(tag)) == 1
    assert tag not in bed_tags.standing()


def test_a_command_that_fails_says_what_and_why() -> None:
    with Testbed(1) as bed:
        with pytest.raises(UsageError, match="up already"):
            bed.up()
        with pytest.raises(ExecutionError, match=r"`ip netns add .*` failed: .*File exists"):
            command("ip", "netns", "add", bed.namespace("m0"))


def started(*words: str, mark: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, str(CLI), *words],
        env=os.environ | {"COEXEC_TEST_MARK": mark, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def verb(*words: str) -> "subprocess.CompletedProcess[str]":
    child = started(*words, mark="")
    out, said = child.communicate(timeout=ENOUGH_S)
    return subprocess.CompletedProcess(words, child.returncode, out, said)


def first_sign_of(child: "subprocess.Popen[str]") -> bed_tags.Tag:
    """The tag of a process's test bed, as soon as there is anything of it."""
    end_s = time.monotonic() + ENOUGH_S
    while time.monotonic() < end_s:
        for tag in bed_tags.standing():
            if tag.pid == child.pid:
                return tag
        time.sleep(0.002)
    raise AssertionError(f"no test bed came up: {child.communicate()}")


def marked(mark: str) -> list[str]:
    """Processes, anywhere, that have inherited the mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text())
        except OSError:  # it has ended
            continue
    return found
