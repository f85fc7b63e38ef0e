"""Trial of an OpenCL device: a small kernel is compiled and run there.

python -m coexec.engines.opencl.driver_trial NAME DRIVER
"""

import sys

import numpy as np

from coexec.engines import detect, verdicts
from coexec.engines.opencl.binaries import OPTIONS, Binaries
from coexec.engines.opencl.platforms import DeviceHandle, devices, start
from coexec.errors import DeviceError

__all__ = ["unusable"]

_SOURCE = """
__kernel void trial(__global const float* x, __global float* y) {
  __local float sums[8];
  const int item = get_local_id(0);
  const float16 wide = floor(max(vload16(get_global_id(0), x), -2.0f));
  const float8 eight = wide.lo + wide.hi;
  const float4 v = eight.lo + eight.hi;
  sums[item] = v.x + v.y + v.z + v.w;
  barrier(CLK_LOCAL_MEM_FENCE);
  float sum = 0.0f;
  for (int i = 0; i < 8; i++) sum += sums[i];
  y[get_global_id(0)] = mad(v.x, 2.0f, sum);
}
"""
"""A kernel with everything that the engine's kernels use: vectors, functions of vectors, local
memory and a barrier. Functions come from the driver's library. If that was built for another
processor than the one for which the driver compiles, the functions of the widest vectors fail."""


def unusable(device: DeviceHandle) -> str | None:
    """Why a device must not be used, with the remedy; None if it works.

    The first call for a device and driver takes about a second, at most the trial's time limit.
    """
    try:
        device.check_room()
    except DeviceError as error:  # not stored with the verdicts: it may be over soon
        return f"{device.name} is unusable now: {error}"
    program = ("coexec.engines.opencl.driver_trial", device.name, device.driver)
    # PoCL's own cache would store kernels that coexec's cache has, or that must not be stored.
    failure = verdicts.verdict(
        _facts(device), program, lambda: _compute(device), POCL_KERNEL_CACHE="0"
    )
    if not failure:
        return None
    remedy = device.runtime.remedy if device.runtime else "update or reinstall the driver"
    return (
        f"{device.name} is unusable: a small test kernel {failure} [{device.driver}]; {remedy}, "
        f"after which coexec devices --fresh tries the device again, or leave the device out: "
        f"CPU devices work without it"
    )


def _facts(device: DeviceHandle) -> dict[str, object]:
    """Everything that the verdict depends on."""
    import pyopencl

    return {
        "device": device.name,
        "driver": device.driver,
        "platform": str(device.handle.platform.version),
        "pyopencl": pyopencl.VERSION_TEXT,
    }


def _compute(device: DeviceHandle) -> str:
    """Compile and run the kernel here. Returns the failure; "" if the numbers are right."""
    import pyopencl as cl

    from coexec.engines.opencl.failures import cause

    x = np.arange(-32, 224, dtype=np.float32) / 4
    y = np.zeros(16, np.float32)
    try:
        context = device.context()
        queue = cl.CommandQueue(context)
        kernel = cl.Kernel(Binaries(device, context, None).program(_SOURCE, OPTIONS), "trial")
        flags = cl.mem_flags
        x_buffer = cl.Buffer(context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=x)
        y_buffer = cl.Buffer(context, flags.READ_WRITE, y.nbytes)
        kernel(queue, (16,), (8,), x_buffer, y_buffer)
        cl.enqueue_copy(queue, y, y_buffer)
    except (cl.Error, MemoryError) as error:
        return f"failed ({cause(error)})"
    vectors = np.floor(np.maximum(x, -2)).reshape(16, 4, 4).sum(axis=1)
    expected = np.repeat(vectors.reshape(2, 32).sum(axis=1), 8) + 2 * vectors[:, 0]
    if not np.array_equal(y, expected):
        return f"gave wrong numbers ({y[0]:g}, {y[1]:g}, ... for {expected[0]:g}, {expected[1]:g})"
    return ""


def _named(name: str, driver: str) -> str:
    """Result of the trial of the device with this name and driver."""
    start(detect.usable_cores()[:1])
    device = next((d for d in devices() if (d.name, d.driver) == (name, driver)), None)
    if device is None:
        return "was not run, as another process does not find the device"
    return _compute(device)


if __name__ == "__main__":
    verdicts.end(lambda: _named(*sys.argv[1:]))
