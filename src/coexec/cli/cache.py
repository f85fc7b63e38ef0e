"""`coexec cache`: what the cache folder holds; `trim` and `clear` make it smaller."""

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from coexec.cache import Cache
from coexec.cache.contents import CLEARABLE, clear, contents, trimmed
from coexec.cli.common import CacheOpt, DebugOpt, JsonOpt, print_json
from coexec.cli.console import out
from coexec.errors import UsageError
from coexec.units import format_bytes, format_since, parse_bytes

_LIMITED = "what entries and weights together may take"
_HOLDS = {
    "models": "simplified models",
    "lowered": "models as an engine optimises them",
    "plans": "compiled plans",
    "choices": "what auto has chosen",
    "sources": "digests of model files",
    "signatures": "inputs, outputs and metadata of models",
    "kernels": "compiled kernels",
    "tuning": "launch sizes that were measured",
    "weights": "of the entries above, each content once",
    "profiles": "measured times of tasks and links",
    "trials": "verdicts on engines",
    "engines": "what engines keep themselves",
    "exports": "what exports were compiled to, apart from all else",
    "drafts": "files that are being written",
    "other": "not of this version of coexec; left alone",
}
_OUTSIDE = ("profiles", "trials", "engines", "exports", "drafts", "other")
"""Kinds that the limit does not count."""

verbs = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
Context = typer.Context


@verbs.callback()
def command(
    context: Context, cache: CacheOpt = None, json: JsonOpt = False, debug: DebugOpt = False
) -> None:
    """Show what the cache holds by kind; trim or clear it. Other processes may use it meanwhile:
    what they miss, they make again.
    """
    context.obj = (cache, json)
    if context.invoked_subcommand is not None:
        return
    opened = Cache(cache)
    found = contents(opened.root)
    limited = sum(c.size_bytes for c in found if c.kind not in _OUTSIDE)
    if json:
        print_json({"folder": str(opened.root), "limit_bytes": opened.limit_bytes,
                    "limited_bytes": limited, "kinds": [asdict(c) for c in found]})  # fmt: skip
        return
    table = Table("kind", "files", "size", "last used", "holds", box=None)
    now_s = time.time()
    for content in (c for c in found if c.count):
        used = "" if content.used_s is None else format_since(now_s - content.used_s)
        size = format_bytes(content.size_bytes)
        table.add_row(content.kind, str(content.count), size, used, _HOLDS[content.kind])
    out.print(table if table.row_count else "empty")
    out.print(f"folder  {opened.root}")
    out.print(f"limit   {format_bytes(limited)} of {format_bytes(opened.limit_bytes)}, {_LIMITED}")


@verbs.command("trim")
def trim_command(
    context: Context,
    to: Annotated[
        str | None, typer.Option(help=f"For example 2GiB: {_LIMITED}. Default: the limit.")
    ] = None,
    cache: CacheOpt = None,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Remove what was not used for the longest time. What remaining entries need stays."""
    opened, json = _opened(context, cache, json)
    limit_bytes = opened.limit_bytes if to is None else parse_bytes(to)
    before = _sizes(opened)
    left_bytes = trimmed(opened, limit_bytes)
    if left_bytes > limit_bytes:
        raise UsageError(f"the cache {str(opened.root)!r} takes {format_bytes(left_bytes)} still, "
                         f"{format_bytes(limit_bytes)} were wanted: files cannot be removed, or "
                         f"another process writes; make the folder writable, or try "
                         f"later")  # fmt: skip
    _report(opened, before, json)


@verbs.command("clear")
def clear_command(
    context: Context,
    kind: Annotated[
        str | None, typer.Argument(help=f"One of {', '.join(CLEARABLE)}. Default: all.")
    ] = None,
    cache: CacheOpt = None,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Remove all of a kind, or everything. Weights go with the last entry that needs them."""
    opened, json = _opened(context, cache, json)
    before = _sizes(opened)
    if left := clear(opened, kind):
        raise UsageError(f"{len(left)} files of the cache cannot be removed, such as "
                         f"{str(left[0])!r}; make the folder writable")  # fmt: skip
    _report(opened, before, json)


def _opened(context: Context, cache: Path | None, json: bool) -> tuple[Cache, bool]:
    """The cache and whether JSON is wanted; options may stand before the verb or behind it."""
    before, json_before = context.obj
    return Cache(before if cache is None else cache), json or json_before


def _sizes(cache: Cache) -> Mapping[str, int]:
    return {content.kind: content.size_bytes for content in contents(cache.root)}


def _report(cache: Cache, before: Mapping[str, int], json: bool) -> None:
    after = _sizes(cache)
    freed = {kind: size - after[kind] for kind, size in before.items() if size > after[kind]}
    facts: dict[str, Any] = {"folder": str(cache.root), "freed_bytes": freed,
                             "left_bytes": after}  # fmt: skip
    if json:
        print_json(facts)
        return
    details = "".join(f", {kind} {format_bytes(size)}" for kind, size in freed.items())
    out.print(f"freed {format_bytes(sum(freed.values()))}{details}")
    out.print(f"{format_bytes(sum(after.values()))} left in {cache.root}")
