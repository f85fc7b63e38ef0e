"""`coexec cache`: show the contents of the cache folder; `trim` and `clear` make it smaller."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.main import get_command

from coexec.cli.options import DebugOpt, JsonOpt, SettingOptions, takes
from coexec.cli.verbs import VerbOutput, prints
from coexec.errors import StoreError
from coexec.units import format_bytes, format_since, parse_bytes

if TYPE_CHECKING:
    from coexec.cache import Cache
    from coexec.cache.contents import Content

_verbs = typer.Typer(invoke_without_command=True, add_completion=False, rich_markup_mode=None)
Context = typer.Context

_HOLDS = {
    "models": "simplified models",
    "lowered": "models as an engine optimises them",
    "plans": "compiled plans",
    "choices": "what auto has chosen",
    "comparisons": "whether plans answer as ONNX Runtime does",
    "sources": "digests of model files",
    "signatures": "inputs, outputs and metadata of models",
    "declared": "declared shapes of inputs",
    "assumed": "sizes assumed for open dimensions",
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
"""Kinds to which the limit does not apply."""


@dataclass(frozen=True)
class CacheContents:
    """Contents of the cache, by kind."""

    folder: str
    """The cache folder."""
    limit_bytes: int
    """Most bytes of entries and weights."""
    limited_bytes: int
    """Bytes of entries and weights."""
    kinds: "Sequence[Content]"
    """By kind: count, size_bytes, used_s in seconds since 1970."""


@dataclass(frozen=True)
class Removal:
    """Bytes that were removed from the cache."""

    folder: str
    """The cache folder."""
    freed_bytes: Mapping[str, int]
    """By kind, bytes that were freed."""
    left_bytes: Mapping[str, int]
    """By kind, bytes that are left."""


@_verbs.callback()
@prints(CacheContents)
@takes("cache")
def command(
    context: Context, options: SettingOptions, json: JsonOpt = False, debug: DebugOpt = False
) -> None:
    """Show what the cache holds by kind; trim or clear it. Other processes may use it meanwhile;
    they make missing entries again.
    """
    context.obj = (options, json)
    if context.invoked_subcommand is None:
        from coexec.cache import Cache
        from coexec.cache.contents import contents

        cache = Cache(options.cache)
        kinds = contents(cache.root)
        limited_bytes = sum(c.size_bytes for c in kinds if c.kind not in _OUTSIDE)
        found = CacheContents(str(cache.root), cache.limit_bytes, limited_bytes, kinds)
        VerbOutput(found, _text(found)).print(json)


def _text(found: CacheContents) -> Iterator[Any]:
    import time

    from coexec.cli.console import labelled, show

    now_s = time.time()
    columns = {
        "kind": "kind",
        "files": "count",
        "size": "size_bytes",
        "last used": lambda c: None if c.used_s is None else format_since(now_s - c.used_s),
        "holds": lambda c: _HOLDS[c.kind],
    }
    present = [content for content in found.kinds if content.count]
    yield show(present, columns) if present else "empty"
    sizes = f"{format_bytes(found.limited_bytes)} of {format_bytes(found.limit_bytes)}"
    limit = f"{sizes}, what entries and weights together may take"
    yield from labelled({"folder": found.folder, "limit": limit})


@_verbs.command("trim")
@prints(Removal)
@takes("cache")
def trim_command(
    context: Context,
    options: SettingOptions,
    to: Annotated[
        str | None,
        typer.Option(help="What entries and weights may take: 2GiB. Default: the cache's limit."),
    ] = None,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Remove what was not used for the longest time. What remaining entries need stays."""
    from coexec.cache.contents import trimmed

    cache = _opened(context, options)
    limit_bytes = cache.limit_bytes if to is None else parse_bytes(to)
    before = _sizes(cache)
    left_bytes = trimmed(cache, limit_bytes)
    if left_bytes > limit_bytes:
        raise StoreError(
            f"the cache {str(cache.root)!r} takes {format_bytes(left_bytes)} still, "
            f"{format_bytes(limit_bytes)} were wanted: files cannot be removed, or "
            f"another process writes; make the folder writable, or try later"
        )
    _freed(cache, before).print(json or context.obj[1])


@_verbs.command("clear")
@prints(Removal)
@takes("cache")
def clear_command(
    context: Context,
    options: SettingOptions,
    kind: Annotated[
        str | None, typer.Argument(help="A kind that coexec cache lists. Default: all.")
    ] = None,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Remove all of a kind, or everything. Weights go with the last entry that needs them."""
    from coexec.cache.contents import clear

    cache = _opened(context, options)
    before = _sizes(cache)
    if left := clear(cache, kind):
        raise StoreError(
            f"{len(left)} files of the cache cannot be removed, such as "
            f"{str(left[0])!r}; make the folder writable"
        )
    _freed(cache, before).print(json or context.obj[1])


def _opened(context: Context, options: SettingOptions) -> "Cache":
    """The cache; its option may be before the verb or after it."""
    from coexec.cache import Cache

    return Cache(options.cache or context.obj[0].cache)


def _sizes(cache: "Cache") -> dict[str, int]:
    from coexec.cache.contents import contents

    return {content.kind: content.size_bytes for content in contents(cache.root)}


def _freed(cache: "Cache", before: Mapping[str, int]) -> VerbOutput:
    """The difference from the sizes ``before``."""
    after = _sizes(cache)
    freed = {kind: size - after[kind] for kind, size in before.items() if size > after[kind]}
    details = "".join(f", {kind} {format_bytes(size)}" for kind, size in freed.items())
    lines = (
        f"freed {format_bytes(sum(freed.values()))}{details}",
        f"{format_bytes(sum(after.values()))} left in {cache.root}",
    )
    return VerbOutput(Removal(str(cache.root), freed, after), lines)


group = get_command(_verbs)
