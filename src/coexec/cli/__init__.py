"""The command line: `coexec VERB MODEL ...`. One file a verb; errors become one line, exit 2."""

import sys
import warnings
from typing import Any

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, or 2 after an error of the user's."""
    import typer

    from coexec.cli.app import app
    from coexec.errors import CoexecError

    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show
            result = app(arguments, standalone_mode=False, prog_name="coexec")
        return int(result or 0)
    except (typer.Abort, KeyboardInterrupt):
        print("coexec: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0
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


def _show(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning on one line, without the place in our code that it comes from."""
    _say(f"warning: {message}")


def _say(message: str) -> None:
    print(f"coexec: {' '.join(message.split())}", file=sys.stderr)
