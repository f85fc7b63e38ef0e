"""Exit codes of the command line, and names of errors in JSON documents."""

import typer

from coexec.errors import CheckError, CoexecError, UsageError

DONE, CHECK_FAILED, WRONG_USAGE, CANNOT, INTERRUPTED = 0, 1, 2, 3, 130
EXIT_CODES = {
    DONE: "Done.",
    CHECK_FAILED: "A check failed: results are not those of ONNX Runtime (`check`, `--check`).",
    WRONG_USAGE: "Wrong usage: a verb, an option or a value that does not exist or has no meaning.",
    CANNOT: "It cannot be done here: the model does not load, a device, engine or package is "
    "absent or fails, no plan exists, a file cannot be read or written.",
    INTERRUPTED: "Interrupted by Ctrl-C.",
}


def exit_code(error: Exception) -> int:
    """The exit code after an error."""
    if isinstance(error, CheckError):
        return CHECK_FAILED
    if isinstance(error, UsageError | typer.TyperException):
        return WRONG_USAGE
    return CANNOT


def kind_of(error: Exception) -> str:
    """Name of the class of an error in `coexec.errors` or Python, such as "ModelError"."""
    if isinstance(error, typer.TyperException):
        return UsageError.__name__
    if isinstance(error, CoexecError):  # its class may derive from ONNX Runtime's as well
        own_classes = (c for c in type(error).__mro__ if c.__module__ == CoexecError.__module__)
        return next(own_classes).__name__
    return "OSError" if isinstance(error, OSError) else type(error).__name__
