"""The page of `coexec doctor`."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from rich.table import Table

from coexec.__about__ import __version__
from coexec.cache import Cache
from coexec.cli.console import Trimmed, out
from coexec.cli.installed import (
    CacheState,
    Extra,
    cache_state,
    core_packages,
    extras,
    other_packages,
)
from coexec.cli.processors import engine_table, remarks
from coexec.engines.registry import Driven
from coexec.engines.survey import Survey, survey
from coexec.errors import CoexecError
from coexec.profiling.facts import MACHINE, Fact, MachineFiles, determined
from coexec.profiling.fitness import Finding, findings, observed
from coexec.runtime.loops import loop_reason
from coexec.units import format_bytes

__all__ = ["Examination", "document", "examined", "print_page", "private", "verdict"]

_T = TypeVar("_T")

_FALLBACK = "onnxruntime"
"""The engine that every model needs."""
_HOMES = re.compile(r"/(?:home|Users)/[^/\s'\":,;)]+")


@dataclass(frozen=True)
class Examination:
    """All that the page shows."""

    machine: Sequence[Fact]
    packages: Mapping[str, str | None]
    extras: Sequence[Extra]
    other_packages: Mapping[str, str]
    survey: Survey
    loop: Fact
    cache: CacheState | None
    why_no_cache: str
    fitness: Sequence[Finding]


def examined(cache_folder: Path | None, machine: MachineFiles | None = None) -> Examination:
    """Examine this machine and this installation, for some seconds."""
    machine = machine or MachineFiles.here()
    fitness = findings(machine, observed(machine))  # before any other process is started
    packages, further = core_packages(), extras()
    known = {*packages, *(name for extra in further for name in extra.versions)}
    try:
        cache, why_no_cache = cache_state(Cache(cache_folder)), ""
    except (CoexecError, OSError) as error:
        cache, why_no_cache = None, str(error)
    found = Examination(
        [determined(name, partial(read, machine)) for name, read in MACHINE.items()],
        packages,
        further,
        other_packages(known),
        survey(),
        determined("loop", lambda: ": ".join(loop_reason())),
        cache,
        why_no_cache,
        fitness,
    )
    return private(found)


def private(value: _T) -> _T:
    """``value`` with ~ in place of home folders, in all texts of dataclasses and collections."""
    return cast(_T, _private(value))


def _private(value: Any) -> Any:
    if isinstance(value, str):
        home = str(Path.home())
        text = value if home == "/" else re.sub(rf"{re.escape(home)}(?=\W|$)", "~", value)
        return _HOMES.sub("~", text)
    if isinstance(value, Mapping):
        return {key: _private(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_private, value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _private(getattr(value, f.name)) for f in fields(value)})
    return value


def document(found: Examination) -> dict[str, Any]:
    """The page for programs."""
    return {
        "coexec": __version__,
        "verdict": verdict(found),
        "machine": {fact.name: fact.value for fact in found.machine if fact.value is not None},
        "unknown": {fact.name: fact.why_not for fact in found.machine if fact.value is None},
        "packages": found.packages,
        "extras": [asdict(extra) for extra in found.extras],
        "other_packages": found.other_packages,
        "processors": [asdict(driven) for driven in found.survey.processors],
        "broken": found.survey.broken,
        "loop": found.loop.value or found.loop.why_not,
        "cache": asdict(found.cache) if found.cache else {"unknown": found.why_no_cache},
        "fitness": [asdict(finding) for finding in found.fitness],
    }


def verdict(found: Examination) -> str:
    """One sentence: ready, ready but with which limits, or not ready and why; with the remedy."""
    if obstacles := list(_obstacles(found)):
        return f"Not ready, because {'; '.join(obstacles)}."
    if limits := list(_limits(found)):
        return f"Ready, but {'; '.join(limits)}."
    return "Ready."


def _obstacles(found: Examination) -> Iterable[str]:
    """Why no model can run."""
    missing = [name for name, text in found.packages.items() if text is None]
    if missing:
        packages = " ".join(missing)
        yield f"packages are not installed: {packages} (python -m pip install {packages})"
    if _FALLBACK in found.survey.broken:
        yield f"the engine {_FALLBACK} cannot be used: {found.survey.broken[_FALLBACK]}"
    elif not any(_runs_fallback(driven) for driven in found.survey.processors):
        reinstall = f"python -m pip install --force-reinstall {_FALLBACK}"
        yield f"the engine {_FALLBACK} runs on no CPU ({reinstall})"


def _runs_fallback(driven: Driven) -> bool:
    return driven.name == "cpu" and _FALLBACK in driven.usable


def _limits(found: Examination) -> Iterable[str]:
    """What does not work, or not well, while models run."""
    for engine, reason in found.survey.broken.items():
        yield f"the engine {engine} cannot be used: {reason}"
    if found.cache is None:
        yield f"the cache cannot be used: {found.why_no_cache} (name another one with --cache)"
    elif found.cache.why_not_writable:
        refused = found.cache.why_not_writable
        yield f"the cache cannot be written: {refused} (name another one with --cache)"
    disturbing = [f for f in found.fitness if f.verdict == "look"]
    if disturbing:
        each = ", ".join(f"{f.what} ({f.remedy})" for f in disturbing)
        yield f"measured times would be disturbed: {each}"


def print_page(found: Examination) -> None:
    """Print the page for people."""
    out.print(verdict(found))
    out.print()
    for title, show in _SECTIONS.items():
        out.print(title)
        for line in show(found):
            out.print(Trimmed(line))
        out.print()


def _facts(found: Examination) -> Iterable[Table]:
    rows = [(fact.name.removesuffix("_bytes").replace("_", " "), _worded(fact))
            for fact in found.machine]  # fmt: skip
    yield _table([("coexec", __version__), *rows])


def _worded(fact: Fact) -> str:
    if fact.value is None:
        return f"could not be determined: {fact.why_not}"
    if isinstance(fact.value, bool):
        return "yes" if fact.value else "no"
    if fact.name.endswith("_bytes"):
        return format_bytes(float(fact.value))
    return str(fact.value)


def _table(rows: Iterable[Sequence[str]]) -> Table:
    """A table without a head, in which nothing is cut off."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    for row in rows:
        while len(table.columns) < len(row):
            table.add_column(overflow="fold")
        table.add_row(*row)
    return table


def _packages(found: Examination) -> Iterable[Table]:
    yield _table([(name, text or "not installed") for name, text in found.packages.items()])
    yield _table(map(_extra_row, found.extras))
    if found.other_packages:
        yield _table((f"also {name}", text) for name, text in found.other_packages.items())


def _extra_row(extra: Extra) -> tuple[str, str]:
    here = ", ".join(f"{name} {text}" for name, text in extra.versions.items() if text)
    if extra.is_complete:
        return extra.name, here
    missing = " and ".join(name for name, text in extra.versions.items() if text is None)
    return extra.name, f"{here and here + '; '}without {missing}: {extra.command} ({extra.brings})"


def _engines(found: Examination) -> Iterable[Table]:
    processors = found.survey.processors
    if processors:
        yield engine_table(processors)
    texts = [*remarks(processors)]
    texts += [f"{name}: {reason}" for name, reason in found.survey.broken.items()]
    if texts:
        yield _table((text,) for text in texts)


def _state(found: Examination) -> Iterable[Table]:
    loop = found.loop.value if found.loop.value is not None else found.loop.why_not
    rows = [("run loop", str(loop))]
    cache = found.cache
    if cache is None:
        rows.append(("cache", f"could not be determined: {found.why_no_cache}"))
    else:
        used = f"{format_bytes(cache.size_bytes)}, limit {format_bytes(cache.limit_bytes)}"
        state = used if cache.exists else "not made yet"
        refused = cache.why_not_writable
        write = f", cannot be written ({refused}): name another one with --cache" if refused else ""
        disk = f"{format_bytes(cache.free_bytes)} free on its disk"
        rows.append(("cache", f"{cache.folder}: {state}; {disk}{write}"))
    yield _table(rows)


def _fitness(found: Examination) -> Iterable[Table]:
    yield _table(
        (
            finding.verdict,
            finding.what,
            f"{finding.found}. Remedy: {finding.remedy}" if finding.remedy else finding.found,
        )
        for finding in found.fitness
    )


_SECTIONS: Mapping[str, Callable[[Examination], Iterable[Table]]] = {
    "MACHINE": _facts,
    "PACKAGES": _packages,
    "ENGINES": _engines,
    "STATE": _state,
    "FIT TO MEASURE ON": _fitness,
}
