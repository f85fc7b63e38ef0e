"""The solvers' packages, loaded when a planner needs one."""

import importlib
from types import ModuleType

from coexec.errors import UsageError, first_line

__all__ = ["library"]


def library(planner: str, solver: str, module: str) -> ModuleType:
    """The module of a solver that comes with the extra ``exact``.

    Args:
        planner: needs it, for messages.
        solver: what users call it.
        module: its name in imports.

    Raises:
        UsageError: it is not installed, or cannot be loaded: two packages may bring different
            versions of one native library.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        missing = isinstance(error, ModuleNotFoundError)
        if missing and (error.name or "").partition(".")[0] == package:
            trouble, remedy = "is not installed", "pip install"
        else:
            trouble = f"is installed, but cannot be loaded ({first_line(error)})"
            remedy = "pip install --upgrade"
        raise UsageError(
            f"planner {planner} needs {solver}, which {trouble}; {remedy} 'coexec[exact]'"
        ) from error
