"""The trial of a GPU: OpenCL compiles a small kernel and runs it."""

import numpy as np

from coexec.engines import trial
from coexec.engines.opencl.binaries import OPTIONS, Binaries
from coexec.engines.opencl.platforms import DeviceHandle, devices
from coexec.errors import DeviceError
from coexec.hardware.hardware import Device

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
memory and a barrier."""


def find(device: Device) -> DeviceHandle:
    """The GPU of a device; it has passed its trial.

    Raises:
        DeviceError: there is none, or it does not work.
    """
    why = "there is no OpenCL driver for it"
    for gpu in devices():
        if gpu.identity == device.identity:
            reason = unusable(gpu)
            if reason is None:
                return gpu
            why = reason
    raise DeviceError(f"device {device.name!r} cannot be used through OpenCL: {why}")


def unusable(device: DeviceHandle) -> str | None:
    """Why a device must not be used, with the remedy; None if it works.

    The first call for a device and driver takes about a second, at most the trial's time limit.
    """
    import pyopencl

    failure = trial.failure(
        "coexec.engines.opencl.tried:attempt",
        device.name,
        device.driver,
        facts={
            "device": device.name,
            "driver": device.driver,
            "platform": str(device.handle.platform.version),
            "pyopencl": pyopencl.VERSION_TEXT,
        },
    )
    if not failure:
        return None
    return (
        f"{device.name} is unusable: a small test kernel {failure} [{device.driver}]; update or "
        f"reinstall the driver, after which coexec devices --fresh tries the device again, or "
        f"leave the device out: CPU devices work without it"
    )


def attempt(name: str, driver: str) -> str:
    """Compile and run the kernel here, on the device with this name and driver. Returns the
    failure; "" if the numbers are right."""
    device = next((d for d in devices() if (d.name, d.driver) == (name, driver)), None)
    if device is None:
        return "was not run, as another process does not find the device"
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
