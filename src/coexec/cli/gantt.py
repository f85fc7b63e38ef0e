"""A trace drawn in the terminal."""

from coexec.timing.trace import Span, Trace
from coexec.units import format_seconds

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_SHADES = "░▒▓"
_WAITING = "·"
_LEGEND = f"{_EIGHTHS[-1]} computing  {_SHADES[-1]} copying  {_WAITING} waiting"


def draw(trace: Trace, width: int = 72) -> str:
    """Text with one line per device, and a legend.

    A column is a period of time. If the device mostly computed in it, the height of its sign shows
    the share of the period that the device was busy. If the device mostly copied, the darkness
    shows this share. If it mostly waited, the sign is a point. After the last span of the device,
    columns are empty.
    """
    if not trace.makespan_s:
        return "nothing ran"
    lines = []
    label = max(len(d) for d in trace.devices)
    for device in trace.devices:
        computing, copying, waiting = (
            _shares([s for s in trace.of(kind) if s.device == device], trace.makespan_s, width)
            for kind in ("compute", "transfer", "wait")
        )
        bar = "".join(map(_sign, computing, copying, waiting))
        lines.append(f"{device:>{label}} │{bar}│ {trace.utilisation(device):4.0%}")
    end = format_seconds(trace.makespan_s)
    lines.append(f"{'':>{label}} 0{_LEGEND.center(width - len(end))}{end}")
    return "\n".join(lines)


def _shares(spans: list[Span], makespan_s: float, width: int) -> list[float]:
    """Share of each column's period that is covered by spans."""
    shares = [0.0] * width
    for span in spans:
        first = span.start_s / makespan_s * width
        last = span.end_s / makespan_s * width
        for column in range(int(first), min(width - 1, int(last)) + 1):
            shares[column] += max(0.0, min(last, column + 1) - max(first, column))
    return shares


def _sign(computing: float, copying: float, waiting: float) -> str:
    busy = computing + copying
    if copying > computing and round(3 * busy):
        return _SHADES[min(2, round(3 * busy) - 1)]
    height = _EIGHTHS[min(8, round(8 * busy))]
    return _WAITING if height == " " and waiting > 0.5 else height
