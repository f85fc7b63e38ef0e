"""The command line: `coexec VERB MODEL ...`. One file a verb; errors become one line, exit 2."""

import contextlib
import io
import os
import sys
import warnings
from typing import Any

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, or 2 after an error of the user's."""
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names may have characters that it cannot show
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader has seen enough
        _drop_output()
        return 0
    except OSError as error:
        _drop_output()
        where = f" ({error.filename})" if error.filename else ""
        _say(f"cannot read or write{where}: {error.strerror or error}; make room, or choose "
             f"another place")  # fmt: skip
        return 2


def _run(arguments: list[str]) -> int:
    import typer

    from coexec.cli.app import app
    from coexec.errors import CoexecError

    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show
            result = app(arguments, standalone_mode=False, prog_name="coexec")
        return int(result or 0)
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # what typer makes of it
            raise error.__context__ from None
        raise
    except (typer.Abort, KeyboardInterrupt):
        print("coexec: interrupted", file=sys.stderr)
        return 130
    except typer.TyperException as error:
        _say(getattr(error, "format_message", error.__str__)())
        return 2
    except MemoryError as error:
        _say(f"there is not enough memory: {error}; use smaller shapes or fewer devices")
        return 2
    except CoexecError as error:
        if "--debug" in arguments:
            raise
        _say(str(error))
        return 2


def _drop_output() -> None:
    """What is left to be written goes nowhere: else Python complains of it when it ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _show(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning on one line, without the place in our code that it comes from."""
    _say(f"warning: {message}")


def _say(message: str) -> None:
    from coexec.cli.console import visible

    with contextlib.suppress(OSError):
        print(f"coexec: {visible(' '.join(message.split()))}", file=sys.stderr)
