"""Programs that import nothing but what they measure, each with a cache folder of its own."""

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
    """What a script of this folder prints as JSON in its last line, and "program_s", its time.

    Args:
        cache: the user's cache folder, as far as the program knows.

    Raises:
        ExecutionError: the program failed; with the last line that it said.
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
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ExecutionError(said[-1])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found | {"program_s": took_s}
