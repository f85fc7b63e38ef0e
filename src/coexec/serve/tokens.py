"""Tokens in files, and in the header ``Authorization``."""

import hmac
import re
from collections.abc import Sequence
from pathlib import Path

from coexec.errors import UsageError

_TOKEN = re.compile(r"[!-~]+")


def read_token(path: Path, remedy: str) -> str:
    """The token in a file, without the white space around it.

    Args:
        remedy: ends the messages of errors.

    Raises:
        UsageError: the file does not exist, cannot be read, or does not hold a token.
    """
    try:
        text = path.read_text("ascii").strip()
    except FileNotFoundError:
        raise UsageError(f"there is no token in {str(path)!r}; {remedy}") from None
    except OSError as error:
        raise UsageError(
            f"cannot read the token file {str(path)!r}: {error.strerror}; {remedy}"
        ) from None
    except UnicodeDecodeError:
        text = ""
    if not _TOKEN.fullmatch(text):
        raise UsageError(
            f"what {str(path)!r} holds is no token, which is one line of letters and "
            f"digits; {remedy}"
        )
    return text


def authorization_error(values: Sequence[str], token: str) -> str | None:
    """Why the values of the header ``Authorization`` are not ``Bearer TOKEN``; None if they are.
    Compares in constant time."""
    if len(values) != 1:
        number = "several headers Authorization" if values else "no header Authorization"
        return f"the request has {number}; send one: Bearer TOKEN"
    scheme, _, sent = values[0].partition(" ")
    if scheme.lower() != "bearer":
        return "the header Authorization has not the scheme Bearer; send Bearer TOKEN"
    if not hmac.compare_digest(sent.strip().encode(), token.encode()):
        return "the header Authorization has a wrong token; send the one of the server's token file"
    return None
