"""A trace drawn in the terminal."""

from coexec.timing.trace import Trace
from coexec.units import format_seconds

__all__ = ["draw"]

_EIGHTHS = " ▁▂▃▄▅▆▇█"


def draw(trace: Trace, width: int = 72) -> str:
    """One line a device; a column is as high as the share of its time that the device was busy."""
    if not trace.makespan_s:
        return "nothing ran"
    lines = []
    label = max(len(d) for d in trace.devices)
    for device in trace.devices:
        busy = [0.0] * width
        for span in trace.spans:
            if span.device != device:
                continue
            first = span.start_s / trace.makespan_s * width
            last = span.end_s / trace.makespan_s * width
            for column in range(int(first), min(width - 1, int(last)) + 1):
                busy[column] += max(0.0, min(last, column + 1) - max(first, column))
        bar = "".join(_EIGHTHS[min(8, round(8 * share))] for share in busy)
        lines.append(f"{device:>{label}} │{bar}│ {trace.utilisation(device):4.0%}")
    end = format_seconds(trace.makespan_s)
    lines.append(f"{'':>{label}} 0{end:>{width}}")
    return "\n".join(lines)
