"""The page of a report: one HTML file that works offline.

The figures are SVG that a script of this package draws from data in the file. A charting library
would be ten times larger than script and style together (Vega-Lite 800 kB, Plotly 4.5 MB), and
none of them draws a schedule and a graph of a thousand tasks without code of one's own.
"""

import html
import json
import re
from collections.abc import Iterator
from importlib.resources import files

from coexec.codec import without_nan
from coexec.report.contents import Contents
from coexec.units import format_seconds


def page_of(contents: Contents) -> str:
    """The text of the file.

    Names from the model are data, in which no "<" is left that could end the script element; the
    page has a policy that forbids requests to the network.
    """
    source = files("coexec.report") / "page"
    parts = {name: (source / f"page.{name}").read_text("utf-8") for name in ("html", "css", "js")}
    data = json.dumps(without_nan(contents.to_json()), allow_nan=False, ensure_ascii=True)
    title = html.escape(f"{contents.title}: coexec report")
    texts = {
        "@TITLE@": title,
        "@ANSWER@": "".join(_answer(contents)),
        "@ROWS@": "".join(_rows(contents)),
        "@STYLE@": parts["css"],
        "@SCRIPT@": parts["js"],
        "@DATA@": data.replace("<", "\\u003c"),
    }
    # In one pass: a name from the model may be "@DATA@".
    return re.sub("|".join(texts), lambda found: texts[found[0]], parts["html"])


def _answer(contents: Contents) -> Iterator[str]:
    """The answer as paragraphs, which a browser without scripts shows, too."""
    for sentence in contents.answer:
        yield f"<p>{html.escape(sentence)}</p>"
    if contents.doubt is not None:
        yield f'<p id="doubt">In doubt: {html.escape(contents.doubt)}.</p>'
    if contents.failure is not None:
        text = html.escape(f"This report is not complete: {contents.failure}")
        yield f'<p id="failure" role="alert">{text}</p>'


def _rows(contents: Contents) -> Iterator[str]:
    """The ways to run the model as a list, for a browser without scripts."""
    for row in contents.rivals:
        facts = [
            row.name,
            row.status,
            "" if row.measured_s is None else format_seconds(row.measured_s),
            "" if row.share is None else f"{row.share:.2f} of ONNX Runtime's time",
            row.reason,
        ]
        yield f"<li>{html.escape('; '.join(fact for fact in facts if fact))}</li>"
