"""Parsing of text from users ("8GB", "50Mbit"), and formatting of text for users ("1.2 ms").

Used at the edges of the program only; inside, quantities are plain numbers.
"""

import math
import re
from collections.abc import Sequence

from coexec.errors import UsageError

_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?(bit|b)?(?:/s|ps)?\s*", re.IGNORECASE)


def _parse(text: str, what: str) -> tuple[float, str]:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text!r} is not a {what}: write a number and a unit, for example 8GB or 50Mbit"
        )
    number, prefix, unit = match.groups()
    value = float(number) * (_DECIMAL | _BINARY)[(prefix or "").lower()]
    if math.isinf(value):
        raise UsageError(
            f"the {what} of {len(text)} digits is too large; write it with a unit, "
            f"for example 8GB or 50Mbit"
        )
    return value, (unit or "b").lower()


def parse_bytes(text: str) -> int:
    """Bytes in ``text``: "8GB" is 8e9, "8GiB" is 2**33, "512" is 512."""
    number, unit = _parse(text, "size")
    if unit != "b":
        raise UsageError(f"{text!r} counts bits, a size is wanted: write for example 8GB")
    if text.rstrip().lower().endswith(("/s", "ps")):
        raise UsageError(f"{text!r} is a bandwidth, a size is wanted: write for example 8GB")
    return round(number)


def parse_bandwidth(text: str) -> float:
    """Bytes per second in ``text``: "50Mbit" is 6.25e6, "1.5GB/s" is 1.5e9."""
    number, unit = _parse(text, "bandwidth")
    return number / 8 if unit == "bit" else number


def _scaled(value: float, steps: list[tuple[float, str]]) -> str:
    factor, unit = next((s for s in steps if abs(value) >= s[0]), steps[-1])
    scaled = value / factor
    digits = 0 if abs(scaled) >= 100 else 1 if abs(scaled) >= 10 else 2
    return f"{scaled:.{digits}f} {unit}".rstrip()


def format_seconds(seconds: float) -> str:
    """``0.00123`` becomes "1.23 ms"; infinity becomes "never"."""
    if seconds == float("inf"):
        return "never"
    return _scaled(seconds, [(1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")])


def format_joules(joules: float) -> str:
    """``0.00123`` becomes "1.23 mJ"."""
    return _scaled(joules, [(1.0, "J"), (1e-3, "mJ"), (1e-6, "uJ")])


def format_numbers(numbers: Sequence[int], between: str = ",") -> str:
    """Ascending numbers as text; consecutive numbers are joined: (0, 1, 3) is "0-1,3"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return between.join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)


def format_since(seconds: float) -> str:
    """``5400`` becomes "1 h ago"; less than a minute, or a negative number, becomes "now"."""
    steps = [(86400, "d"), (3600, "h"), (60, "min")]
    text = next(
        (f"{int(seconds // size)} {unit} ago" for size, unit in steps if seconds >= size), ""
    )
    return text or "now"


def format_bytes(size_bytes: float) -> str:
    """``2**20`` becomes "1.00 MiB"."""
    return _scaled(size_bytes, [(2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")])


def format_count(count: float) -> str:
    """``5713216096`` becomes "5.71 G"."""
    return _scaled(count, [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, "")])
