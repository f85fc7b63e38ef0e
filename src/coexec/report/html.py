"""The page of a report: one HTML file that works offline.

The figures are SVG that a script of this package draws from data in the file. A charting library
would be ten times larger than script and style together (Vega-Lite 800 kB, Plotly 4.5 MB), and
none of them draws a schedule and a graph of a thousand tasks without code of one's own.
"""

import html
import json
import re
from importlib.resources import files

from coexec.codec import without_nan
from coexec.report.contents import Contents

__all__ = ["page_of"]


def page_of(contents: Contents) -> str:
    """The text of the file.

    Names from the model are data, in which no "<" is left that could end the script element; the
    page has a policy that forbids requests to the network.
    """
    source = files("coexec.report") / "page"
    parts = {name: (source / f"page.{name}").read_text("utf-8") for name in ("html", "css", "js")}
    data = json.dumps(without_nan(contents.to_json()), allow_nan=False, ensure_ascii=True)
    texts = {
        "@TITLE@": html.escape(f"{contents.title}: coexec report"),
        "@STYLE@": parts["css"],
        "@SCRIPT@": parts["js"],
        "@DATA@": data.replace("<", "\\u003c"),
    }
    # In one pass: a name from the model may be "@DATA@".
    return re.sub("|".join(texts), lambda found: texts[found[0]], parts["html"])
