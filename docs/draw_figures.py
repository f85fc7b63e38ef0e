"""Draw stored figures as a chart: coexec's time over the best other engine's, by model, with the
source of each gain.

    python docs/draw_figures.py docs/figures/two_cores.json docs/figures/two_cores.svg

Needs nothing but Python.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 820, 130, 290, 56, 40, 28
MOST = 1.2
"""The largest ratio that has room."""
STYLE = (
    "text{font:13px sans-serif;fill:#222}.small{font-size:11px;fill:#555}.back{fill:#fff}"
    ".faster{fill:#4878a8}.slower{fill:#b9b9b9}.one{stroke:#b05a5a;stroke-dasharray:4 3}"
)
OTHERS = {"onnxruntime_ms": "ONNX Runtime", "openvino_ms": "OpenVINO"}


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw stored figures as an SVG picture.")
    parser.add_argument("figures", type=Path)
    parser.add_argument("picture", type=Path)
    arguments = parser.parse_args()
    figures = json.loads(arguments.figures.read_text(encoding="utf-8"))
    arguments.picture.write_text(draw(figures), encoding="utf-8")


def draw(figures: Mapping[str, Any]) -> str:
    """The chart as an SVG document."""
    rows = figures["rows"]
    bottom = TOP + ROW * len(rows)
    scale = (WIDTH - LEFT - RIGHT) / MOST
    one = LEFT + scale
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 34}" role="img" '
        f'aria-label="coexec beside the best other engine">',
        f"<style>{STYLE}</style>",
        f'<rect class="back" width="{WIDTH}" height="{bottom + 34}"/>',
        f'<text x="8" y="20">{escape(figures["title"])}</text>',
        '<text class="small" x="8" y="38">coexec over the best other engine; shorter is better, '
        "1.00 is the same</text>",
    ]
    for number, row in enumerate(rows):
        y = TOP + number * ROW
        best = min(OTHERS, key=lambda name: row[name])
        ratio = row["coexec_ms"] / row[best]
        look = "faster" if ratio < 0.97 else "slower"
        text = f"{ratio:.2f}: {row['coexec_ms']:g} ms, {OTHERS[best]} {row[best]:g} ms"
        beside = LEFT + max(ratio, 1) * scale + 12
        parts += [
            f'<text x="8" y="{y + 18}">{escape(row["model"])}</text>',
            f'<rect class="{look}" x="{LEFT}" y="{y}" width="{ratio * scale:.1f}" height="{BAR}"/>',
            f'<text class="small" x="{beside:.1f}" y="{y + 11}">{escape(text)}</text>',
            f'<text x="{beside:.1f}" y="{y + 26}">{escape(row["gain"])}</text>',
        ]
    made = f"{figures['command']}, {figures['date']}, {figures['versions']}"
    parts += [
        f'<line class="one" x1="{one:.1f}" x2="{one:.1f}" y1="{TOP - 6}" y2="{bottom}"/>',
        f'<text class="small" x="8" y="{bottom + 22}">{escape(made)}</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
