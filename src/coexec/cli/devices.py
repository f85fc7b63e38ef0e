"""`coexec devices`: the processors of this machine, as device names."""

from dataclasses import asdict
from typing import Any

from rich.table import Table

from coexec.cli.common import DebugOpt, FreshOpt, JsonOpt, out, print_json
from coexec.engines.registry import default_names, describe
from coexec.errors import DeviceError
from coexec.units import format_bytes


def command(json: JsonOpt = False, fresh: FreshOpt = False, debug: DebugOpt = False) -> None:
    """List this machine's processors and OpenCL devices. cpu:0-3 may be used in parts:
    cpu:0-1,cpu:2-3. --fresh tries OpenCL devices again."""
    found = [describe(name) for name in default_names()]
    gpus, why, absent = _gpus(fresh)
    if json:
        print_json({"devices": [asdict(d) for d in found], "opencl": gpus, "no_opencl": why,
                    "absent": absent})  # fmt: skip
        return
    table = Table("device", "cores", "max. frequency", "memory", "processor", "engine", box=None)
    for d in found:
        hertz = f"{d.max_frequency_hz / 1e9:.2f} GHz" if d.max_frequency_hz else "not told"
        memory = format_bytes(d.memory_bytes) if d.memory_bytes else "not told"
        table.add_row(d.name, str(len(d.cores)), hertz, memory, d.processor, d.engine)
    out.print(table)
    for reason in absent:
        out.print(reason, markup=False)
    if why is not None:
        out.print(f"no OpenCL devices: {why}", markup=False)
        return
    table = Table("OpenCL", "usable", "units", "memory", "unified", "fp16 arithmetic",
                  "processor", "driver", box=None)  # fmt: skip
    for row in gpus:
        table.add_row(row["name"], "no" if row["unusable"] else "yes", str(row["compute_units"]),
                      format_bytes(row["memory_bytes"]),
                      *("yes" if row[k] else "no" for k in ("unified", "fp16")),
                      row["processor"], row["driver"])  # fmt: skip
    out.print(table)
    for row in gpus:
        if row["unusable"]:
            out.print(f"{row['name']}: {row['unusable']}", markup=False)
    first = next((r["name"] for r in gpus if r["on_cpu"] and not r["unusable"]), None)
    if first is not None:
        out.print("OpenCL devices that are the CPU compute on its cores: bind them to those that "
                  f"no other device has, as in --devices cpu:0,{first}@1")  # fmt: skip


def _gpus(fresh: bool) -> tuple[list[dict[str, Any]], str | None, list[str]]:
    """The OpenCL devices of this machine, or why there are none; and runtimes that do not load."""
    from coexec.engines.opencl.platforms import absent, devices
    from coexec.engines.opencl.trial import unusable

    try:
        found = devices()
    except DeviceError as error:
        return [], str(error), []
    rows = [
        {
            "name": f"gpu:{number}",
            "compute_units": device.handle.max_compute_units,
            "memory_bytes": device.memory_bytes,
            "unified": device.unified,
            "fp16": device.half,
            "processor": device.name,
            "driver": device.driver,
            "on_cpu": device.on_cpu,
            "unusable": unusable(device, fresh=fresh),
        }
        for number, device in enumerate(found)
    ]
    none = ("no driver is installed; pip install 'coexec[pocl]' or 'coexec[intel-opencl]' brings "
            "a runtime for CPU cores")  # fmt: skip
    return rows, None if rows else none, absent()
