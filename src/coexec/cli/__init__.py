"""The command line: `coexec VERB MODEL ...`. Each verb has a file; an error is printed as one line.

docs/cli.md has the verbs with their options, exit codes and JSON documents.
"""

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code, one of `coexec.cli.exits.EXIT_CODES`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # the encoding may lack characters of names
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, such as head, has closed the pipe
        _drop_output()
        return 0
    except OSError as error:
        if "--debug" in arguments:
            raise
        where = f" ({error.filename})" if error.filename else ""
        code = _fail(
            error,
            f"cannot read or write{where}: {error.strerror or error}; make room, "
            f"or choose another place",
            arguments,
        )
        _drop_output()
        return code


def _run(arguments: list[str]) -> int:
    import typer

    from coexec.cli.app import group
    from coexec.cli.exits import INTERRUPTED
    from coexec.errors import WITHOUT_ONNX_RUNTIME, CoexecError, PackageError
    from coexec.extras import lacks_onnx_runtime

    try:
        with warnings.catch_warnings():
            warnings.showwarning = _printer()
            result = group(arguments, standalone_mode=False, prog_name="coexec")
        return int(result or 0)
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # typer turns it into SystemExit
            raise error.__context__ from None
        raise
    except (typer.Abort, KeyboardInterrupt):
        print("coexec: interrupted", file=sys.stderr)
        return INTERRUPTED
    except typer.TyperException as error:
        return _fail(error, getattr(error, "format_message", error.__str__)(), arguments)
    except MemoryError as error:
        return _fail(
            error,
            f"there is not enough memory: {error}; use smaller shapes or fewer devices",
            arguments,
        )
    except CoexecError as error:
        if "--debug" in arguments:
            raise
        return _fail(error, str(error), arguments)
    except (ImportError, AttributeError) as error:
        if not lacks_onnx_runtime(error) or "--debug" in arguments:
            raise
        return _fail(PackageError(WITHOUT_ONNX_RUNTIME), WITHOUT_ONNX_RUNTIME, arguments)


def _fail(error: Exception, message: str, arguments: Sequence[str]) -> int:
    """Print an error: a line on standard error and, with --json, a document on standard output.

    Returns:
        The exit code.
    """
    from coexec.cli.exits import exit_code, kind_of
    from coexec.cli.output import print_json

    message = " ".join(message.split())
    if "--json" in arguments:
        facts = getattr(error, "facts", {})
        with contextlib.suppress(OSError, ValueError):  # standard output itself may be the problem
            print_json({**facts, "error": {"kind": kind_of(error), "message": message}})
            sys.stdout.flush()
    _say(message)
    return exit_code(error)


def _drop_output() -> None:
    """Discard the remaining output. Otherwise Python prints an error about it at its end."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _printer() -> Callable[..., None]:
    """A handler that prints each warning once, on one line, without its place in coexec's code."""
    printed: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in printed:
            printed.add(str(message))
            _say(f"warning: {message}")

    return show


def _say(message: str) -> None:
    from coexec.cli.console import visible

    with contextlib.suppress(OSError):
        print(f"coexec: {visible(' '.join(message.split()))}", file=sys.stderr)
