"""Common parts of CoDL's tables, simulated or measured: the rivals, and the paper's figures.

Rows are those of `hope_tables`: one planner with one model on one machine.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hope_tables import Row

from coexec.planners import PLANNERS
from coexec.selection.race import ratio

__all__ = [
    "ALONE", "APART", "COUNTED", "DIVIDED", "MODELS", "MULAYER", "OURS", "PAPER_S", "PHONES",
    "beside", "by_case", "dividing", "latencies", "means", "perfect", "ratios",
]  # fmt: skip

MODELS = ("retinaface", "yolov2", "vgg16", "posenet", "style_transfer")
APART = "style_transfer"
"""This model is faster in the paper than perfect division between its two processors would be."""
PHONES = ("snapdragon_855", "snapdragon_865", "snapdragon_888")
MULAYER, OURS = "mulayer", "codl"
ALONE = ("CPU", "GPU")
DIVIDED: Mapping[str, Mapping[str, Any]] = {
    "H": {"dimension": "H", "chains": False},
    "OC": {"dimension": "OC", "chains": False},
    "H or OC": {"chains": False},
    OURS: {},
}
"""Options of the planner `codl`: by dimension without chains, and the complete planner."""
COUNTED = (MULAYER, *ALONE)
"""The rivals of the paper's means."""

_PAPER_MS: Mapping[str, Sequence[tuple[float, float, float, float]]] = {
    "retinaface": ((2166, 1126, 995, 678), (2411, 925, 908, 551), (1883, 1028, 863, 559)),
    "yolov2": ((407, 238, 214, 140), (423, 189, 189, 123), (370, 201, 185, 119)),
    "vgg16": ((374, 222, 218, 135), (411, 172, 210, 119), (325, 168, 185, 107)),
    "posenet": ((691, 448, 345, 242), (732, 370, 308, 201), (629, 390, 341, 226)),
    "style_transfer": ((1065, 1023, 415, 267), (1238, 826, 374, 250), (843, 900, 357, 226)),
}
"""Milliseconds by model, by phone: uLayer as CoDL's authors built it, CPU, GPU, CoDL."""
_PAPER_855_MS = {
    "retinaface": (844, 856, 767),
    "yolov2": (222, 207, 188),
    "vgg16": (175, 179, 158),
    "posenet": (301, 372, 265),
    "style_transfer": (560, 457, 384),
}
"""Milliseconds by model on the first phone without chains: H, OC, H or OC."""


def _paper_s() -> Mapping[tuple[str, str, str], float]:
    seconds = {}
    for model, phones in _PAPER_MS.items():
        for phone, figures in zip(PHONES, phones, strict=True):
            for label, ms in zip((*COUNTED, OURS), figures, strict=True):
                seconds[phone, model, label] = ms / 1e3
        for label, ms in zip(DIVIDED, _PAPER_855_MS[model], strict=False):
            seconds[PHONES[0], model, label] = ms / 1e3
    return seconds


PAPER_S = _paper_s()
"""Seconds by phone, model and rival."""
PAPER_MEANS = {MULAYER: 3.43, "CPU": 2.08, "GPU": 1.56}
"""Means of latency over CoDL's latency, as stated in the paper, over all five networks."""


def dividing() -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Planner and options by label: `mulayer`, if this planner exists, and `codl`."""
    planners: dict[str, tuple[str, Mapping[str, Any]]] = {}
    if MULAYER in PLANNERS:
        planners[MULAYER] = MULAYER, {}
    return planners | {label: (OURS, options) for label, options in DIVIDED.items()}


def by_case(found: Iterable[Row]) -> dict[tuple[str, str], dict[str, Row]]:
    """Rows with results, by platform and model, then by planner."""
    table: dict[tuple[str, str], dict[str, Row]] = {}
    for row in found:
        if row["rounds_s"]:
            table.setdefault((row["platform"], row["model"]), {})[row["planner"]] = row
    return table


def beside(ours: float | None, paper: float | None, digits: int) -> str:
    """Two figures as text, coexec's first; a dash for a missing figure."""
    return " / ".join("-" if x is None else f"{x:.{digits}f}" for x in (ours, paper))


def latencies(found: Sequence[Row]) -> list[Row]:
    """A row with milliseconds for each platform and model."""
    labels = list(dict.fromkeys(row["planner"] for row in found))
    table = []
    for (platform, model), own in by_case(found).items():
        cells: Row = {"platform": platform, "model": model}
        for label in labels:
            latency_ms = 1e3 * statistics.median(own[label]["rounds_s"]) if label in own else None
            paper = PAPER_S.get((platform, model, label))
            text = f"{latency_ms:.1f}" if latency_ms is not None else "-"
            cells[label] = text if paper is None else f"{text} / {paper * 1e3:.0f}"
        table.append(cells)
    return table


def ratios(found: Iterable[Row], against: Sequence[str]) -> list[Row]:
    """The latency of each of ``against`` over codl's latency, from ratios of rounds."""
    table = []
    for (platform, model), own in by_case(found).items():
        cells: Row = {"platform": platform, "model": model}
        for label in against:
            latency_ratio = paper = None
            if label in own and OURS in own:
                latency_ratio = ratio(own[label]["rounds_s"], own[OURS]["rounds_s"])
            if (platform, model, label) in PAPER_S:
                paper = PAPER_S[platform, model, label] / PAPER_S[platform, model, OURS]
            if latency_ratio is not None or paper is not None:
                cells[label] = (
                    beside(latency_ratio, paper, 2) if paper is not None else f"{latency_ratio:.2f}"
                )
        table.append(cells)
    return table


def perfect(first_s: Sequence[float], second_s: Sequence[float]) -> list[float]:
    """Seconds per round if two processors divided all work without loss: c g / (c + g)."""
    return [c * g / (c + g) for c, g in zip(first_s, second_s, strict=False)]


def means(found: Sequence[Row], against: Mapping[str, str] | None = None) -> list[Row]:
    """Arithmetic means of latency over codl's latency, with `APART` and without it.

    Beside them are means of the paper's figures for the same cases. The means that the paper states
    are over all its networks.

    Args:
        against: labels with their names in the paper; by default `COUNTED`.
    """
    against = {label: label for label in COUNTED} if against is None else against
    table = []
    for label, in_paper in against.items():
        cells: Row = {"over codl": label}
        for title, models in (("all five", MODELS), (f"without {APART}", MODELS[:-1])):
            cases = {key: own for key, own in by_case(found).items() if key[1] in models}
            latency_ratios = [
                ratio(own[label]["rounds_s"], own[OURS]["rounds_s"])
                for own in cases.values()
                if label in own and OURS in own
            ]
            paper = [
                PAPER_S[(*key, in_paper)] / PAPER_S[(*key, OURS)]
                for key in cases
                if (*key, in_paper) in PAPER_S
            ]
            if paper:
                mean = statistics.mean(latency_ratios) if latency_ratios else None
                cells[title] = beside(mean, statistics.mean(paper), 2)
                off = "-" if mean is None else f"{mean / statistics.mean(paper) - 1:+.0%}"
                cells[f"{title}: off"] = off
        table.append(cells | {"as stated": f"{PAPER_MEANS[in_paper]:.2f}"})
    return table
