"""Names, limits, token and access log of the verbs that serve."""

import importlib.util
import logging
import math
import os
import socket
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from coexec.cli.console import err, out
from coexec.cli.output import print_json
from coexec.errors import PackageError, UsageError
from coexec.extras import EXTRAS, install
from coexec.research_loader import zoo_name
from coexec.units import parse_bytes

if TYPE_CHECKING:
    from coexec.serve.intake import ServeLimits

_REMEDY = (
    "write one with `python -c 'import secrets; print(secrets.token_hex(32))'` into a file that "
    "only the server's user can read, and name it with {option}"
)


def print_addresses(server: str, urls: Mapping[str, str], credits: int, json: bool) -> None:
    """Print names and addresses of the models, and flush, because a program may wait for them."""
    if json:
        first = next(iter(urls), None)
        url = None if first is None else urls[first]
        facts = {"name": first, "url": url, "models": urls, "server": server, "credits": credits}
        print_json(facts)
    else:
        for name, url in urls.items():
            out.print(f"{name} is served at {url}, {credits} requests at a time; Ctrl-C ends it")
        if not urls:
            out.print(f"no model is loaded yet; the server answers at {server}; Ctrl-C ends it")
    sys.stdout.flush()


def named_models(
    words: Sequence[str], name: str | None, repository: Path | None, planned: bool
) -> dict[str, str]:
    """The models to serve, by name.

    Args:
        words: MODEL or NAME=MODEL.
        name: of a single model.
        planned: whether there is a plan, which belongs to one model.

    Raises:
        UsageError: there is no model, or two have the same name.
    """
    if repository is not None and not repository.is_dir():
        raise UsageError(f"--repository {str(repository)!r} is no folder; name one with models")
    if repository is not None and not os.access(repository, os.R_OK | os.X_OK):
        raise UsageError(f"--repository {str(repository)!r} cannot be read; change its permissions")
    if not words and repository is None:
        raise UsageError("there is nothing to serve; name a model, or a folder with --repository")
    if len(words) != 1 and (name is not None or planned):
        option = "--plan" if planned else "--name"
        raise UsageError(
            f"{option} is for one model, and there are {len(words)}; give names as NAME=MODEL, and "
            f"plans in folders of coexec export"
        )
    named: dict[str, str] = {}
    for word in words:
        key, equals, model = word.partition("=")
        if not equals or "/" in key or zoo_name(word) is not None or Path(word).exists():
            key, model = served_name(word), word
        key = key if name is None else name
        if key in named:
            raise UsageError(f"two models have the name {key!r}; give another one as NAME=MODEL")
        named[key] = model
    return named


def served_name(model: str) -> str:
    """Default name of a model in URLs."""
    if (zoo := zoo_name(model)) is not None:
        return zoo
    path = Path(model)
    return path.resolve().name if path.is_dir() else path.stem


def serve_limits(max_request: str, queue: int, deadline_s: float) -> "ServeLimits":
    """The limits that options set.

    Raises:
        UsageError: one has no meaning.
    """
    from coexec.serve.intake import ServeLimits

    body_bytes = parse_bytes(max_request)
    if body_bytes < 1:
        raise UsageError(f"--max-request {max_request} lets no request in; give for example 256MiB")
    if queue < 0:
        raise UsageError(f"--queue {queue} is no number of requests; give 0 or more")
    check_number("--deadline", deadline_s)
    held_bytes = max(4 * body_bytes, ServeLimits.held_bytes)
    return ServeLimits(body_bytes, held_bytes, queue=queue, wait_s=deadline_s)


def check_number(option: str, value_s: float) -> None:
    """Check the seconds of an option.

    Raises:
        UsageError: they are not above 0.
    """
    if not 0 < value_s < math.inf:
        raise UsageError(f"{option} {value_s:g} is no time; give seconds above 0")


def client_token(
    file: Path | None,
    without: bool,
    host: str,
    listener: socket.socket,
    option: str = "--token-file",
) -> str | None:
    """The token that clients have to send; None: they send none.

    Args:
        option: names the file.

    Raises:
        UsageError: the file has none, or other machines could connect without a token.
    """
    from coexec.serve.server import is_loopback
    from coexec.serve.tokens import read_token

    remedy = _REMEDY.format(option=option)
    if file is not None:
        token = read_token(file, remedy)
        # A warning and no error, because containers mount secrets so.
        if file.stat().st_mode & stat.S_IROTH:
            _warn(
                f"every user of this machine can read the token in {str(file)!r}; chmod o-r takes "
                f"this right away"
            )
        return token
    if is_loopback(listener):
        return None
    if not without:
        raise UsageError(
            f"--host {host} answers other machines, and there is no token; {remedy}, or say "
            f"--without-token"
        )
    _warn(
        f"other machines are answered at {host}, without authentication or encryption; a proxy can "
        f"add both"
    )
    return None


def _warn(message: str) -> None:
    err.print(f"coexec: warning: {message}", soft_wrap=True)


def log_requests() -> None:
    """Write the lines of the access log on standard error."""
    logger = logging.getLogger("coexec_access")
    logger.addHandler(logging.StreamHandler())
    logger.setLevel(logging.INFO)
    logger.propagate = False


@contextmanager
def silent_onnxruntime() -> Iterator[None]:
    """Context in which ONNX Runtime writes nothing on standard error. Each of its errors is also
    raised, and becomes an answer."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)  # fatal errors only
    try:
        yield
    finally:
        onnxruntime.set_default_logger_severity(2)  # its default: warnings


def check_serving() -> None:
    """Check that the packages of the extra ``serve`` are installed.

    Raises:
        PackageError: a package is not installed.
    """
    for package in EXTRAS["serve"]:
        if importlib.util.find_spec(package.replace("-", "_")) is None:
            raise PackageError(
                f"coexec serve needs {package}, which is not installed; {install('serve')}"
            )
