"""Output of `coexec cache`: the contents of the cache folder."""

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.table import Table

from coexec.cache import Cache
from coexec.cache.contents import contents
from coexec.cli.console import out
from coexec.cli.output import print_json
from coexec.units import format_bytes, format_since

__all__ = ["print_cache", "print_freed", "sizes"]

_LIMITED = "what entries and weights together may take"
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


def print_cache(opened: Cache, json: bool) -> None:
    """Print the contents of the cache, by kind."""
    kinds = contents(opened.root)
    limited = sum(c.size_bytes for c in kinds if c.kind not in _OUTSIDE)
    if json:
        print_json(
            {
                "folder": str(opened.root),
                "limit_bytes": opened.limit_bytes,
                "limited_bytes": limited,
                "kinds": [asdict(c) for c in kinds],
            }
        )
        return
    table = Table("kind", "files", "size", "last used", "holds", box=None)
    now_s = time.time()
    for content in (c for c in kinds if c.count):
        used = "" if content.used_s is None else format_since(now_s - content.used_s)
        size = format_bytes(content.size_bytes)
        table.add_row(content.kind, str(content.count), size, used, _HOLDS[content.kind])
    out.print(table if table.row_count else "empty")
    out.print(f"folder  {opened.root}")
    out.print(f"limit   {format_bytes(limited)} of {format_bytes(opened.limit_bytes)}, {_LIMITED}")


def sizes(cache: Cache) -> Mapping[str, int]:
    """Bytes of the cache's contents, by kind."""
    return {content.kind: content.size_bytes for content in contents(cache.root)}


def print_freed(cache: Cache, before: Mapping[str, int], json: bool) -> None:
    """Print the bytes that were removed since the cache had the sizes ``before``."""
    after = sizes(cache)
    freed = {kind: size - after[kind] for kind, size in before.items() if size > after[kind]}
    facts: dict[str, Any] = {"folder": str(cache.root), "freed_bytes": freed, "left_bytes": after}
    if json:
        print_json(facts)
        return
    details = "".join(f", {kind} {format_bytes(size)}" for kind, size in freed.items())
    out.print(f"freed {format_bytes(sum(freed.values()))}{details}")
    out.print(f"{format_bytes(sum(after.values()))} left in {cache.root}")
