"""Import of a solver's package, at the time at which a planner needs it."""

import importlib
from types import ModuleType

from coexec.errors import PackageError, first_line
from coexec.extras import install


def library(planner: str, solver: str, module: str) -> ModuleType:
    """The module of a solver that comes with the extra ``exact``.

    Args:
        planner: the planner that needs the solver, for messages.
        solver: the solver's name, for messages.
        module: the name of the module to import.

    Raises:
        PackageError: the package is not installed, or cannot be loaded, for example because two
            packages contain different versions of one native library.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        missing = isinstance(error, ModuleNotFoundError)
        if missing and (error.name or "").partition(".")[0] == package:
            trouble, remedy = "is not installed", install("exact")
        else:
            trouble = f"is installed, but cannot be loaded ({first_line(error)})"
            remedy = install("exact", upgrade=True)
        raise PackageError(
            f"planner {planner} needs {solver}, which {trouble}; {remedy}"
        ) from error
