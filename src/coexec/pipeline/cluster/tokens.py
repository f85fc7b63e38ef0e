"""The token of a user's clusters: anyone who has it can run any program on all their machines."""

import os
import secrets
from pathlib import Path

import platformdirs

from coexec.errors import UsageError
from coexec.serve import tokens as serve_tokens

__all__ = ["cluster_folder", "make_token", "read_token", "token_file"]

_REMEDY = (
    "`coexec cluster start` makes one: copy that file from the head's machine, and name it "
    "with --token-file if it lies elsewhere"
)


def cluster_folder() -> Path:
    """Folder of this user's token, records of nodes and logs of Ray."""
    return Path(platformdirs.user_state_dir("coexec")) / "cluster"


def token_file() -> Path:
    """File with the token of this user's clusters."""
    return cluster_folder() / "token"


def make_token() -> Path:
    """The user's token file. A new token is written if there is none; only the user can read it.

    Raises:
        UsageError: it cannot be written.
    """
    path = token_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path
    except OSError as error:
        raise UsageError(
            f"cannot write the token file {str(path)!r}: {error.strerror}; set "
            f"XDG_STATE_HOME to a folder that can be written"
        ) from None
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(32))
    return path


def read_token(path: Path | None = None) -> str:
    """The token in a file; None: in the user's file.

    Raises:
        UsageError: the file does not exist, cannot be read, or does not hold a token.
    """
    return serve_tokens.read_token(path or token_file(), _REMEDY)
