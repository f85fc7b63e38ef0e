"""The page of a report in a browser: it opens, explains, sorts and finds without the network."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.report.conftest import HOSTILE, data_of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""Chromium starts as root and without a network."""


class Opened:
    """The page in a browser, with what the browser complained about and asked the network for."""

    def __init__(self, page: Any, file: Path) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(file.as_uri())

    def _hear(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def column(self, title: str) -> list[str]:
        """Texts of a column of the table of tasks."""
        heads = self.page.locator("#tasks th").all_inner_texts()
        index = heads.index(title) + 1
        texts: list[str] = self.page.locator(
            f"#tasks tbody tr td:nth-child({index})"
        ).all_inner_texts()
        return texts


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not CHROMIUM:
        pytest.skip("there is no Chromium; the Debian package chromium brings it")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(_FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Any, page: Path) -> Iterator[Opened]:
    tab = browser.new_page(viewport={"width": 1200, "height": 900})
    yield Opened(tab, page)
    tab.close()


def test_it_draws_all_sections_without_error_or_request(opened: Opened, page: Path) -> None:
    ids = opened.page.locator("section").evaluate_all("nodes => nodes.map(each => each.id)")
    assert opened.page.locator("h1").inner_text().endswith(": coexec report")
    expected = ["rivals", "timeline", "graph", "planners", "without", "memory",
                "tasks", "facts"]  # fmt: skip
    assert ids == expected
    assert opened.complaints == []
    assert [url for url in opened.requests if not url.startswith("data:")] == [page.as_uri()]


def test_a_name_from_the_model_is_text(opened: Opened, page: Path) -> None:
    assert any(HOSTILE in row["name"] for row in data_of(page)["tasks"])
    assert any(HOSTILE in name for name in opened.column("task"))
    assert opened.page.locator("img").count() == 0


def test_a_block_of_the_timeline_is_explained(opened: Opened) -> None:
    blocks = opened.page.locator("#gantt .block.compute")
    widths = blocks.evaluate_all("nodes => nodes.map(each => Number(each.getAttribute('width')))")
    blocks.nth(widths.index(max(widths))).hover()  # others may be a pixel wide
    text = opened.page.locator("#tip").inner_text()
    assert "(compute, " in text and "/onnxruntime" in text


def test_keys_move_from_block_to_block(opened: Opened, page: Path) -> None:
    line = data_of(page)["predicted"]
    first = next(iter(line["utilisation"]))
    own = [block for block in line["blocks"] if block["device"] == first]  # one, or more
    opened.page.locator("#gantt").focus()
    seen = []
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        opened.page.keyboard.press(key)
        seen.append(opened.page.locator("#tip").inner_text())
    assert len(set(seen)) == 2 + (len(own) > 1) and "measured" in seen[2]
    opened.page.keyboard.press("Escape")
    assert opened.page.locator("#tip").is_hidden()


def test_a_column_is_sorted_by_its_numbers(opened: Opened, page: Path) -> None:
    seconds = {row["name"]: row["predicted_s"] for row in data_of(page)["tasks"]}
    head = opened.page.locator("#tasks th button", has_text="predicted")
    for order in (-1, 1):
        head.click()
        names = opened.column("task")
        assert [seconds[n] for n in names] == sorted(seconds.values(), key=lambda s: order * s)


def test_the_search_finds_a_task(opened: Opened) -> None:
    opened.page.locator("#search").fill("b2.a")
    marked = opened.page.locator("#tasks tr.match td:first-child").all_inner_texts()
    assert marked == ["b2.a"]
    assert opened.page.locator("#gantt .block.match").count() >= 1
    assert "1 of" in opened.page.locator("#matches").inner_text()


def test_the_ways_to_run_the_model_are_uncut(browser: Any, page: Path, tmp_path: Path) -> None:
    text = page.read_text()
    reason = (
        "a reason of many words, as a candidate has that was faster in some of the rounds, " * 3
    )
    (tmp_path / "reasons.html").write_text(text.replace('"reason": ""', f'"reason": "{reason}"'))
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    Opened(tab, tmp_path / "reasons.html")
    assert reason.strip() in tab.locator("#rivals table").inner_text()
    cut = "node => [node.scrollWidth - node.clientWidth, node.scrollHeight - node.clientHeight]"
    assert tab.locator("#rivals .wide", has=tab.locator("table")).evaluate(cut) == [0, 0]
    tab.close()


def test_a_repeat_of_the_graph_is_opened_by_a_click(
    browser: Any, page: Path, tmp_path: Path
) -> None:
    data = data_of(page)
    chain = [{**data["nodes"][0], "row": row, "column": 0, "name": f"n{row}"} for row in range(14)]
    data |= {"nodes": chain, "edges": [[row, row + 1] for row in range(13)]}
    data["repeats"] = [{"row": 1, "length": 2, "count": 6}]
    text = json.dumps(data).replace("<", "\\u003c")
    old = re.compile(r'(?<=id="data">).*?(?=</script>)', re.S)
    (tmp_path / "chain.html").write_text(old.sub(lambda _: text, page.read_text()))
    tab = browser.new_page()
    opened = Opened(tab, tmp_path / "chain.html")
    boxes = tab.locator("#drawing g")
    assert boxes.count() == 3
    kind = chain[0]["kind"]
    assert f"6 times {kind}, {kind}" in tab.locator("#drawing .fold text").text_content()
    tab.locator("#drawing .fold").click()
    assert boxes.count() == 14
    tab.get_by_role("button", name="Open or fold repeats").click()
    assert boxes.count() == 3
    assert opened.complaints == []
    tab.close()


def test_a_click_on_the_graph_shows_the_task(opened: Opened) -> None:
    opened.page.locator("#drawing g").first.click()
    assert opened.page.locator("#tasks tr.chosen").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(browser: Any, page: Path, scheme: str) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 740}, color_scheme=scheme)
    tab = context.new_page()
    opened = Opened(tab, page)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    backgrounds = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == backgrounds[scheme]
    assert opened.complaints == []
    context.close()


@pytest.mark.parametrize("width", [360, 1200])
def test_the_texts_of_figures_are_inside_of_them(browser: Any, page: Path, width: int) -> None:
    tab = browser.new_page(viewport={"width": width, "height": 800})
    Opened(tab, page)
    overflows = tab.evaluate(
        """() => {
          const right = node => node.getBoundingClientRect().right;
          const boxes = [...document.querySelectorAll("#drawing g")].map(group =>
            right(group.querySelector("text")) - right(group.querySelector(".node")));
          const svg = document.querySelector("#gantt svg");
          const ticks = [...svg.querySelectorAll(".faint")].map(tick => right(tick) - right(svg));
          return [...boxes, ...ticks];
        }"""
    )
    assert overflows and max(overflows) <= 0
    tab.close()
