"""Ray inside of a test bed: the nodes are there, and gone after any end."""

import os
import signal
import sys
import time
import uuid

import bed_tags
import pytest
import ray_nodes
from bed import Testbed
from bed_probe import probe

from coexec.errors import ExecutionError
from tests.pipeline.cluster.test_testbed import first_sign_of, marked, started, verb

REASON = next(
    (f"{f.need}: {f.reason}" for f in probe() if f.reason and f.use in ("all", "ray")), ""
)
pytestmark = [
    pytest.mark.alone,
    pytest.mark.long,
    pytest.mark.system,
    pytest.mark.skipif(bool(REASON), reason=f"no Ray in a test bed here: {REASON}"),
]
NODES = """
import ray
ray.init(logging_level=50, log_to_driver=False)
print(sorted(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]))
"""


def test_a_node_in_each_machine_and_nothing_after_a_kill() -> None:
    mark = uuid.uuid4().hex
    child = started("up", "--machines", "2", "--ray", mark=mark)
    tag = first_sign_of(child)
    assert child.stdout is not None and "Ray at RAY_ADDRESS" in child.stdout.readline()
    done = verb("exec", "--tag", str(tag), "m1", sys.executable, "-c", NODES)
    assert "['10.77.0.1', '10.77.0.2']" in done.stdout, done.stderr
    kill(child.pid, tag)
    child.communicate()
    assert marked(mark) == []


@pytest.mark.parametrize("after_s", [0.5, 2.0, 4.0])
def test_a_kill_in_the_middle_of_the_start_leaves_nothing(after_s: float) -> None:
    mark = uuid.uuid4().hex
    child = started("up", "--machines", "2", "--ray", mark=mark)
    tag = first_sign_of(child)
    time.sleep(after_s)
    kill(child.pid, tag)
    child.communicate()
    assert marked(mark) == []


def test_a_node_that_does_not_start_says_why() -> None:
    with Testbed(2) as bed, pytest.raises(ExecutionError, match=r"ended with code -?\d+ on m0"):
        ray_nodes.start_ray(bed, settings={"RAY_health_check_period_ms": "often"})


def kill(pid: int, tag: bed_tags.Tag) -> None:
    os.kill(pid, signal.SIGKILL)
    while tag.has_owner:
        time.sleep(0.01)
    assert "removed" in verb("down").stdout
    assert tag not in bed_tags.standing()
    assert not tag.folder.exists()
