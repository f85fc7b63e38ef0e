"""Draw a trace as a picture: a row for each device, a box for each segment, a line for each tensor
that crosses.

    coexec run zoo:inception_v3 --devices cpu:0,cpu:1 --trace build/trace.json
    python docs/draw_schedule.py build/trace.json docs/schedule.svg --title "Inception-v3, measured"

Reads Chrome's trace event format as `coexec.timing.trace` writes it. Needs nothing but Python.
"""

import argparse
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

WIDTH, LEFT, RIGHT, TOP = 960, 76, 16, 40
ROW, GAP, AXIS = 44, 26, 34
FILLS = ("#4878a8", "#d08a3c", "#5f9e6e", "#8a6fae", "#b05a5a", "#6b8e9e")
STYLE = (
    "text{font:13px sans-serif;fill:#222}.small{font-size:11px;fill:#555}"
    ".flow{stroke:#444;stroke-width:.8;stroke-opacity:.55;fill:none}.grid{stroke:#ddd}"
    ".back{fill:#fff}.idle{fill:#f0f0f0}.copy{fill:#999}"
)

Event = Mapping[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw a Chrome trace as an SVG picture.")
    parser.add_argument("trace", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--title", default="", help="what was run, where")
    arguments = parser.parse_args()
    events = json.loads(arguments.trace.read_text(encoding="utf-8"))["traceEvents"]
    arguments.picture.write_text(draw(events, arguments.title), encoding="utf-8")


def draw(events: Sequence[Event], title: str) -> str:
    """The trace as an SVG document. Rows are in order of thread number."""
    names = {e["tid"]: e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    spans = [e for e in events if e["ph"] == "X"]
    if not spans:
        raise SystemExit("the trace has no spans: nothing to draw")
    start_us = min(e["ts"] for e in spans)
    length_us = max(e["ts"] + e["dur"] for e in spans) - start_us
    rows = {tid: TOP + i * (ROW + GAP) for i, tid in enumerate(sorted(names))}
    bottom = TOP + len(rows) * (ROW + GAP) - GAP
    scale = (WIDTH - LEFT - RIGHT) / length_us

    def x(time_us: float) -> float:
        return LEFT + (time_us - start_us) * scale

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + AXIS}" '
        f'role="img" aria-label={quoteattr(title or "schedule")}>',
        f"<style>{STYLE}</style>",
        f'<rect class="back" width="{WIDTH}" height="{bottom + AXIS}"/>',
        f'<text x="{LEFT}" y="22">{escape(title)}</text>',
    ]
    for tid, y in rows.items():
        busy_us = sum(e["dur"] for e in spans if e["tid"] == tid)
        parts += [
            f'<rect class="idle" x="{LEFT}" y="{y}" width="{length_us * scale:.1f}" '
            f'height="{ROW}"/>',
            f'<text x="8" y="{y + 20}">{escape(names[tid])}</text>',
            f'<text class="small" x="8" y="{y + 36}">busy {busy_us / length_us:.0%}</text>',
        ]
    parts += _axis(length_us, scale, bottom)
    for number, e in enumerate(sorted(spans, key=lambda e: e["ts"])):
        fill = FILLS[e["tid"] % len(FILLS)]
        look = 'class="copy"' if e["cat"] == "transfer" else f'fill="{fill}"'
        shade = 1 if number % 2 else 0.8
        label = f"{e['name']}: {e['dur'] / 1e3:.3f} ms"
        parts.append(
            f'<rect {look} fill-opacity="{shade}" x="{x(e["ts"]):.2f}" y="{rows[e["tid"]]}" '
            f'width="{max(0.4, e["dur"] * scale - 0.4):.2f}" height="{ROW}">'
            f"<title>{escape(label)}</title></rect>"
        )
    parts += _flows(events, rows, x)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _axis(length_us: float, scale: float, bottom: int) -> Iterable[str]:
    """About eight round times."""
    rough = length_us / 8
    power = 10 ** math.floor(math.log10(rough))
    step_us = next(power * f for f in (1, 2, 5, 10) if power * f >= rough)
    for i in range(math.floor(length_us / step_us) + 1):
        at = LEFT + i * step_us * scale
        yield f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{bottom + 6}"/>'
        yield (
            f'<text class="small" x="{at:.1f}" y="{bottom + 20}" text-anchor="middle">'
            f"{i * step_us / 1e3:g} ms</text>"
        )


def _flows(events: Sequence[Event], rows: Mapping[int, int], x: Any) -> Iterable[str]:
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    for end in (e for e in events if e["ph"] == "f"):
        start = starts[end["id"]]
        down = rows[start["tid"]] < rows[end["tid"]]
        y1, y2 = rows[start["tid"]] + (ROW if down else 0), rows[end["tid"]] + (0 if down else ROW)
        yield (
            f'<line class="flow" x1="{x(start["ts"]):.1f}" y1="{y1}" '
            f'x2="{x(end["ts"]):.1f}" y2="{y2}"/>'
        )


if __name__ == "__main__":
    main()
