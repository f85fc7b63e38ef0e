"""Whether an OpenCL device works: a small kernel is compiled and run there, its numbers compared.

A driver that lists a device may be unable to compile for it, compute wrong numbers, hang or crash.
So the trial runs in a process of its own with a time limit. The verdict is kept in the user's cache
folder for this device, driver and processor; when one of them changes, the device is tried again.

    python -m coexec.engines.opencl.trial NAME DRIVER
"""

import contextlib
import faulthandler
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import platformdirs

from coexec.engines import detect
from coexec.engines.opencl import child
from coexec.engines.opencl.binaries import OPTIONS, Binaries
from coexec.engines.opencl.platforms import DeviceHandle, devices, start

__all__ = ["unusable"]

_FORM = 1
"""Raised when the trial changes: verdicts of an older one do not count."""
_LIMIT_S = 60
_FAILURE_LASTS_S = 24 * 3600.0
"""After that, a device that failed is tried again."""
_PASSED, _FAILED = 77, 78
"""Exit codes of a trial that came to its end. Drivers that give up end a process with 0 or 1."""
_SOURCE = """
__kernel void trial(__global const float* x, __global float* y) {
  __local float sums[8];
  const int item = get_local_id(0);
  const float4 v = vload4(get_global_id(0), x);
  sums[item] = v.x + v.y + v.z + v.w;
  barrier(CLK_LOCAL_MEM_FENCE);
  float sum = 0.0f;
  for (int i = 0; i < 8; i++) sum += sums[i];
  y[get_global_id(0)] = mad(v.x, 2.0f, sum);
}
"""
"""Vectors, local memory and a barrier, which all the engine's kernels are made of."""
_lock = threading.Lock()
_verdicts: dict[Path, str] = {}
"""By the memo's path, what was wrong; "" if the device works."""


def unusable(found: DeviceHandle, *, fresh: bool = False) -> str | None:
    """Why a device must not be used, and what to do about it. None: it works.

    The first call for a device and driver takes about a second, at most the time limit.

    Args:
        fresh: try the device again, whatever is remembered.
    """
    failure = _verdict(found, fresh)
    if not failure:
        return None
    remedy = found.runtime.remedy if found.runtime else "update or reinstall the driver"
    return (f"{found.name} is unusable: a small test kernel {failure} [{found.driver}]; {remedy}, "
            f"after which coexec devices --fresh tries the device again, or leave the device out: "
            f"CPU devices work without it")  # fmt: skip


def _verdict(found: DeviceHandle, fresh: bool) -> str:
    """What was wrong when the device was last tried; "" if it works."""
    facts = _facts(found)
    path = _memo(facts)
    with _lock:  # threads that open the same device try it once
        if fresh or path not in _verdicts:
            failure = None if fresh else _read(path, facts)
            if failure is None:
                failure = _tried(found)
                _write(path, facts, failure)
            _verdicts[path] = failure
        return _verdicts[path]


def _facts(found: DeviceHandle) -> dict[str, object]:
    """All that the verdict depends on. Machines that share a home differ in the processor."""
    import pyopencl

    return {
        "form": _FORM,
        "device": found.name,
        "driver": found.driver,
        "platform": str(found.handle.platform.version),
        "pyopencl": pyopencl.VERSION_TEXT,
        "features": list(detect.features()),
    }


def _memo(facts: dict[str, object]) -> Path:
    """The file of the verdict."""
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]
    return platformdirs.user_cache_path("coexec") / "opencl-trials" / f"{digest}.json"


def _read(path: Path, facts: dict[str, object]) -> str | None:
    """The remembered failure, "" for a device that works, None if nothing is remembered."""
    try:
        data = json.loads(path.read_text())
        age_s = time.time() - path.stat().st_mtime
    except (OSError, ValueError):
        return None
    if not isinstance(data, dict) or data.get("facts") != facts:
        return None
    failure = data.get("failure")
    # Another process may have held the device, or a driver been half installed.
    forgotten = failure and not 0 <= age_s < _FAILURE_LASTS_S
    return failure if isinstance(failure, str) and not forgotten else None


def _write(path: Path, facts: dict[str, object], failure: str) -> None:
    """Remember a verdict where that is possible; elsewhere each process tries the device."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".draft")
        with os.fdopen(handle, "w") as file:
            json.dump({"failure": failure, "facts": facts}, file, indent=1)
        os.replace(draft, path)


def _tried(found: DeviceHandle) -> str:
    """Try a device in a process of its own: what is wrong as "the kernel ...", "" if nothing is."""
    if not child.possible():
        return _compute(found)
    try:
        return _judged(*_run(_command(found)))
    except subprocess.TimeoutExpired:
        return f"did not end within {_LIMIT_S} s"
    except OSError as error:
        return f"was not run, as no process could be started ({error})"


def _run(command: list[str]) -> tuple[int, str]:
    """Exit code and output of a process that finds the same modules as this one."""
    with tempfile.TemporaryFile() as output:  # a pipe may be held open by what the driver starts
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            env=child.variables(), timeout=_LIMIT_S, check=False,
        )  # fmt: skip
        output.seek(0)
        return done.returncode, output.read().decode(errors="replace")


def _command(found: DeviceHandle) -> list[str]:
    return child.command("coexec.engines.opencl.trial", found.name, found.driver)


def _judged(code: int, output: str) -> str:
    """What the end of the trial's process means."""
    if code == _PASSED:
        return ""
    if code < 0:
        return f"crashed its process ({signal.strsignal(-code) or f'signal {-code}'})"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    said = lines[-1][:300] if lines else "no message"
    return said if code == _FAILED else f"ended its process with exit code {code} ({said})"


def _compute(found: DeviceHandle) -> str:
    """Compile and run the kernel in this process."""
    import pyopencl as cl

    from coexec.engines.opencl.failures import cause

    x = np.arange(64, dtype=np.float32)
    y = np.zeros(16, np.float32)
    try:
        context = found.context()
        queue = cl.CommandQueue(context)
        kernel = cl.Kernel(Binaries(found, context, None).program(_SOURCE, OPTIONS), "trial")
        flags = cl.mem_flags
        given = cl.Buffer(context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=x)
        made = cl.Buffer(context, flags.READ_WRITE, y.nbytes)
        kernel(queue, (16,), (8,), given, made)
        cl.enqueue_copy(queue, y, made)
    except (cl.Error, MemoryError) as error:
        return f"failed ({cause(error)})"
    expected = np.repeat(x.reshape(2, 32).sum(axis=1), 8) + 2 * x[::4]
    if not np.array_equal(y, expected):
        return f"gave wrong numbers ({y[0]:g}, {y[1]:g}, ... for {expected[0]:g}, {expected[1]:g})"
    return ""


def _main(name: str, driver: str) -> None:
    """Try a device and end the process, at the latest after the time limit.

    The limit counts even if the process that started this one is gone, and if the driver keeps
    the interpreter's lock.
    """
    faulthandler.dump_traceback_later(_LIMIT_S, exit=True)
    start(detect.usable_cores()[:1])
    found = next((d for d in devices() if (d.name, d.driver) == (name, driver)), None)
    failure = "was not run, as another process does not find the device"
    if found is not None:
        failure = _compute(found)
    if failure:
        print(failure)
    sys.stdout.flush()
    # Without the usual clean-up: a driver that crashes there has computed what it should.
    os._exit(_FAILED if failure else _PASSED)


if __name__ == "__main__":
    _main(*sys.argv[1:])
