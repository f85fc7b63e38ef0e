"""A complete program: rapidocr finds and reads the text of pages of varying size.

The pages are drawn here and are equal in each run. rapidocr runs unchanged, with ONNX Runtime's
class replaced before rapidocr is imported, and as a copy in which one import line is changed.
"""

import importlib.util
import pickle
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from programs import measured

from coexec.errors import CoexecError, first_line

__all__ = ["draw_pages", "pages_read"]

_PACKAGE = "rapidocr_onnxruntime"
_IMPORT = "from onnxruntime import"
_NEEDS = (_PACKAGE, "cv2", "PIL", "pyclipper", "shapely", "yaml", "six", "tqdm")
_WORDS = """
engine plan graph kernel thread cluster device memory layout tensor stride halo border span Invoice
Total Street Garden Mountain River 2024 1789 4096 27.50 EUR No. Page Chapter Figure
"""


@dataclass(frozen=True)
class _Way:
    """A method by which rapidocr gets the class."""

    title: str
    module: str
    how: str
    kept: bool = False
    """Whether the cache is kept from program to program; otherwise each program begins without."""


Row = dict[str, Any]


def pages_read(theirs: str, ours: str, count: int, repeats: int) -> tuple[list[Row], list[Row]]:
    """A row for each method that works, and a row with the reason for each method that does not.

    Args:
        theirs, ours: modules that have the class.
        count: number of pages.
        repeats: number of programs of each method, in turns.
    """
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        reason = f"not installed: {', '.join(missing)} (see benchmarks/README.md)"
        return [], [{"what": "rapidocr", "why": reason}]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pages").mkdir()
        draw_pages(folder / "pages", count)
        methods = [
            _Way("ONNX Runtime", theirs, "as it is"),
            _Way("class patched", ours, "patched"),
            _Way("import changed", ours, str(_changed_copy(folder / "changed", ours))),
            _Way("the same, cache kept", ours, str(folder / "changed"), kept=True),
        ]
        _tried(methods[-1], folder)  # its cache
        programs: dict[_Way, list[Any]] = {method: [] for method in methods}
        for number in range(repeats):
            shift = number % len(methods)
            for method in methods[shift:] + methods[:shift]:
                programs[method].append(_tried(method, folder))
    return _rows(programs)


def draw_pages(folder: Path, count: int, seed: int = 0) -> None:
    """Black text on light pages of varying size, as .png files."""
    from PIL import Image, ImageDraw, ImageFont

    rng = np.random.default_rng(seed)
    for number in range(count):
        width, height = (int(size) for size in rng.integers(300, 1100, 2))
        page = Image.new("RGB", (width, height), (255, 255, int(rng.integers(225, 256))))
        draw = ImageDraw.Draw(page)
        top = int(rng.integers(10, 40))
        while top < height - 50:
            size = int(rng.integers(18, 34))
            words = rng.choice(_WORDS.split(), int(rng.integers(1, max(2, width // 160))))
            left = int(rng.integers(10, 60))
            draw.text(
                (left, top), " ".join(words), fill=(0, 0, 0), font=ImageFont.load_default(size)
            )
            top += size + int(rng.integers(14, 90))
        page.save(folder / f"{number:03}.png")


def _changed_copy(folder: Path, module: str) -> Path:
    """A folder with a copy of rapidocr that imports the class and related names from ``module``."""
    spec = importlib.util.find_spec(_PACKAGE)
    assert spec is not None and spec.submodule_search_locations
    package = folder / _PACKAGE
    shutil.copytree(spec.submodule_search_locations[0], package)
    sources = [path for path in package.rglob("*.py") if _IMPORT in path.read_text("utf-8")]
    if len(sources) != 1:
        sys.exit(
            f"this version of rapidocr imports onnxruntime in {len(sources)} files, not in one"
        )
    text = sources[0].read_text("utf-8")
    sources[0].write_text(text.replace(_IMPORT, f"from {module} import"), "utf-8")
    return folder


def _tried(way: _Way, folder: Path) -> Any:
    """The measurements of a program, with its "texts"; or the reason why it failed."""
    result = folder / "result"
    with tempfile.TemporaryDirectory(dir=folder) as empty:
        cache = folder / "kept" if way.kept else Path(empty)
        words = way.module, way.how, str(folder / "pages"), str(result)
        try:
            result_row = measured("read_pages.py", *words, cache=cache)
        except CoexecError as error:
            return first_line(error)
    return result_row | {"texts": pickle.loads(result.read_bytes())}


def _rows(programs: Mapping[_Way, Sequence[Any]]) -> tuple[list[Row], list[Row]]:
    """Medians of the programs of each method, and medians of their ratios to the first method.

    The times of the first page and of all pages include the creation of the sessions.
    """
    reasons = {
        method.title: [one for one in results if isinstance(one, str)]
        for method, results in programs.items()
    }
    failed = [{"what": f"rapidocr, {name}", "why": why[0]} for name, why in reasons.items() if why]
    baseline = next(iter(programs))
    if reasons[baseline.title]:
        return [], failed
    works = [method for method in programs if not reasons[method.title]]
    return [_row(method.title, programs[method], programs[baseline]) for method in works], failed


def _row(title: str, found: Sequence[Any], baseline: Sequence[Any]) -> Row:
    first, all_pages = ([_seconds(one)[i] for one in found] for i in (0, 1))
    expected = [_seconds(one) for one in baseline]
    return {
        "rapidocr with": title,
        "first page_s": statistics.median(first),
        "ratio, first": statistics.median(a / b[0] for a, b in zip(first, expected, strict=True)),
        "all pages_s": statistics.median(all_pages),
        "ratio, all": statistics.median(a / b[1] for a, b in zip(all_pages, expected, strict=True)),
        "slowest page_s": statistics.median(max(one["pages_s"][1:] or [0.0]) for one in found),
        "pages that differ": max(_differing(one["texts"], baseline[0]["texts"]) for one in found),
        "lines": sum(map(len, found[0]["texts"])),
        "import_s": statistics.median(one["import_s"] for one in found),
    }


def _seconds(program: Mapping[str, Any]) -> tuple[float, float]:
    """Seconds of creation and first page, and of creation and all pages."""
    creation_s, pages_s = program["creation_s"], program["pages_s"]
    return creation_s + pages_s[0], creation_s + sum(pages_s)


def _differing(found: Sequence[Any], expected: Sequence[Any]) -> int:
    """The number of pages whose texts or boxes are not exactly equal."""
    return sum(a != b for a, b in zip(found, expected, strict=True))
