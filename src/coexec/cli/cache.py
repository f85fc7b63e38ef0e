"""`coexec cache`: show the contents of the cache folder; `trim` and `clear` make it smaller."""

from typing import TYPE_CHECKING, Annotated

import typer
from typer.main import get_command

from coexec.cli.options import DebugOpt, JsonOpt, SettingOptions, takes
from coexec.cli.verbs import prints
from coexec.errors import StoreError

if TYPE_CHECKING:
    from coexec.cache import Cache

__all__ = ["group"]

_verbs = typer.Typer(invoke_without_command=True, add_completion=False, rich_markup_mode=None)
Context = typer.Context


@_verbs.callback()
@prints(
    folder="The cache folder.",
    limit_bytes="What entries and weights may take.",
    limited_bytes="What they take.",
    kinds="By kind: count, size_bytes, used_s in seconds since 1970.",
)
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
        from coexec.cli.cache_contents import print_cache

        print_cache(Cache(options.cache), json)


_FREED = prints(
    folder="The cache folder.",
    freed_bytes="By kind, bytes that were freed.",
    left_bytes="By kind, bytes that are left.",
)


@_verbs.command("trim")
@_FREED
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
    from coexec.cli.cache_contents import print_freed, sizes
    from coexec.units import format_bytes, parse_bytes

    opened, json = _opened(context, options, json)
    limit_bytes = opened.limit_bytes if to is None else parse_bytes(to)
    before = sizes(opened)
    left_bytes = trimmed(opened, limit_bytes)
    if left_bytes > limit_bytes:
        raise StoreError(
            f"the cache {str(opened.root)!r} takes {format_bytes(left_bytes)} still, "
            f"{format_bytes(limit_bytes)} were wanted: files cannot be removed, or "
            f"another process writes; make the folder writable, or try later"
        )
    print_freed(opened, before, json)


@_verbs.command("clear")
@_FREED
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
    from coexec.cli.cache_contents import print_freed, sizes

    opened, json = _opened(context, options, json)
    before = sizes(opened)
    if left := clear(opened, kind):
        raise StoreError(
            f"{len(left)} files of the cache cannot be removed, such as "
            f"{str(left[0])!r}; make the folder writable"
        )
    print_freed(opened, before, json)


def _opened(context: Context, options: SettingOptions, json: bool) -> "tuple[Cache, bool]":
    """The cache, and whether to print JSON; options may be before the verb or after it."""
    from coexec.cache import Cache

    before, json_before = context.obj
    return Cache(options.cache or before.cache), json or json_before


group = get_command(_verbs)
