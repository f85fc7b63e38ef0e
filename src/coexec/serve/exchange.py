"""A request with its answer, as the access log shows it."""

import json
import logging
from dataclasses import asdict, dataclass
from enum import StrEnum

__all__ = ["Exchange", "LogForm", "log_exchange"]

_log = logging.getLogger("coexec_access")


class LogForm(StrEnum):
    """Form of the lines that log requests."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True)
class Exchange:
    """A request with its answer."""

    client: str
    method: str
    path: str
    """As the client has sent it: printable ASCII."""
    status: int
    """499: the client disconnected before the answer."""
    bytes_in: int
    bytes_out: int
    duration_s: float
    model: str | None
    """Name of a model of this server, if the path has one."""


def log_exchange(exchange: Exchange, form: LogForm) -> None:
    """Write a line to the logger ``coexec_access``, at level INFO."""
    if form is LogForm.JSON:
        _log.info(json.dumps(asdict(exchange)))
    else:
        e = exchange
        _log.info(
            f"{e.client} {e.method} {e.path} {e.status} {e.bytes_in} B in {e.bytes_out} B out "
            f"{1e3 * e.duration_s:.1f} ms {e.model or '-'}"
        )
