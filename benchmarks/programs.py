"""Programs that import only the measured package, each with a separate cache folder."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from coexec.errors import ExecutionError

__all__ = ["measured"]

_LIMIT_S = 1800.0


def measured(script: str, *words: str, cache: Path) -> dict[str, Any]:
    """The JSON that a script of this folder prints in its last line, and its time, "program_s".

    Args:
        cache: the folder that the program uses as the user's cache folder.

    Raises:
        ExecutionError: the program failed; the message is its last line.
    """
    command = [sys.executable, str(Path(__file__).with_name(script)), *words]
    variables = os.environ | {"XDG_CACHE_HOME": str(cache)}
    start_s = time.perf_counter()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=variables, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ExecutionError(f"{script} took more than {_LIMIT_S:.0f} s") from None
    took_s = time.perf_counter() - start_s
    if done.returncode:
        error_lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ExecutionError(error_lines[-1])
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result | {"program_s": took_s}
