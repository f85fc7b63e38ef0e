"""The attempt of an engine's trial: open it, compile a small model, run it, compare the numbers."""

from collections.abc import Mapping

import numpy as np

from coexec.engines.registry import open_engine
from coexec.errors import first_line
from coexec.hardware.hardware import Device
from coexec.lowering.synthetic import products
from coexec.model.difference import HALF_TOLERANCE, TOLERANCE, worst_difference
from coexec.precision import FLOAT32

_SIZE = 8
"""Rows and columns of the matrices that a trial multiplies."""


def attempt(engine_name: str, device: Device, options: Mapping[str, str]) -> str:
    """Run a small model through the whole contract of an engine, in this process.

    The numbers have to be those of float32, unless the engine states a lower precision: what an
    engine computes in by default is not always what it says.

    Returns the failure; "" if the numbers are right.
    """
    module = products(range(2), _SIZE)
    x = np.linspace(-1, 1, _SIZE * _SIZE, dtype=np.float32).reshape(_SIZE, _SIZE)
    expected = (x @ x) @ (x @ x)
    try:
        engine = open_engine(engine_name, device, options)
        output = engine.allocate(module.outputs[0])
        bound = engine.compile(module).bind({"v0": engine.upload(x)}, {"v2": output})
        for _ in range(2):
            bound.run()
        result = np.array(engine.download(output))
        engine.close()
    except Exception as error:  # engines of other packages may raise any exception
        return f"failed ({type(error).__name__}: {first_line(error)})"
    difference, precision = worst_difference(result, expected), engine.info.precision
    if precision == FLOAT32 and TOLERANCE < difference <= HALF_TOLERANCE:
        return (
            f"was computed less precisely than in float32 ({difference:.0e} of the largest value "
            f"is wrong); an option of the engine may permit that, {engine_name}.precision=fp16"
        )
    if difference > (TOLERANCE if precision == FLOAT32 else HALF_TOLERANCE):
        return f"gave wrong numbers ({result.ravel()[:2]} for {expected.ravel()[:2]})"
    return ""
