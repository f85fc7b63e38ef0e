"""The trial of an engine on a processor: compute a small model and compare the results."""

from collections.abc import Callable

import numpy as np

from coexec.engines import verdicts
from coexec.engines.base import OpenEngine
from coexec.errors import first_line

__all__ = ["compute", "unusable"]

_SIZE = 8
"""Rows and columns of the matrices that a trial multiplies."""


def unusable(
    engine: str, device: str, version: str, open_engine: Callable[[str], OpenEngine]
) -> str | None:
    """The reason why an engine must not be used, and the remedy; None if it works.

    Args:
        device: name with the engine, "cpu:0/NAME". The trial computes a small model there.
        version: of the engine and its package. The trial is repeated when it changes.
        open_engine: opens a device without a trial, if no other process can be started.
    """
    program = ("coexec.engines.contract_trial_process", engine, device)
    facts = {"engine": engine, "device": device, "version": version}
    failure = verdicts.verdict(facts, program, lambda: compute(device, open_engine))
    if not failure:
        return None
    return (
        f"engine {engine} is unusable on {device.partition('/')[0]}: a small model {failure} "
        f"[{version}]; update or reinstall its package, after which coexec devices --fresh "
        f"tries it again, or leave the engine out"
    )


def compute(device: str, open_engine: Callable[[str], OpenEngine]) -> str:
    """Run a small model through the whole contract of an engine, in this process.

    Returns the failure; "" if the numbers are right.
    """
    from coexec.lowering.synthetic import products

    module = products(range(2), _SIZE)
    x = np.linspace(-1, 1, _SIZE * _SIZE, dtype=np.float32).reshape(_SIZE, _SIZE)
    expected = (x @ x) @ (x @ x)
    try:
        engine = open_engine(device)
        output = engine.allocate(module.outputs[0])
        bound = engine.compile(module).bind({"v0": engine.upload(x)}, {"v2": output})
        for _ in range(2):
            bound.run()
        result = np.array(engine.download(output))
        engine.close()
    except Exception as error:  # engines of other packages may raise any exception
        return f"failed ({type(error).__name__}: {first_line(error)})"
    if result.shape != expected.shape or not np.allclose(result, expected, rtol=1e-4, atol=1e-4):
        return f"gave wrong numbers ({result.ravel()[:2]} for {expected.ravel()[:2]})"
    return ""
