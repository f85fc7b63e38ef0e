"""Name and address of a served model, and a check of the packages that serving needs."""

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coexec.cli.console import out
from coexec.cli.output import print_json
from coexec.errors import PackageError
from coexec.extras import install
from coexec.research_loader import zoo_name

__all__ = ["check_serving", "served_name", "tell_address"]


def tell_address(facts: Mapping[str, Any], json: bool) -> None:
    """Print the name and address of the model, and flush, because a program may wait for them."""
    if json:
        print_json(facts)
    else:
        out.print(
            f"{facts['name']} is served at {facts['url']}, {facts['credits']} requests at a "
            f"time; Ctrl-C ends it"
        )
    sys.stdout.flush()


def served_name(model: str) -> str:
    """Default name of a model in URLs."""
    if (zoo := zoo_name(model)) is not None:
        return zoo
    path = Path(model)
    return path.resolve().name if path.is_dir() else path.stem


def check_serving() -> None:
    """Check that the packages of the extra ``serve`` are installed.

    Raises:
        PackageError: a package is not installed.
    """
    for package in ("starlette", "uvicorn"):
        if importlib.util.find_spec(package) is None:
            raise PackageError(
                f"coexec serve needs {package}, which is not installed; {install('serve')}"
            )
