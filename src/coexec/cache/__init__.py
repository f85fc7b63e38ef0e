"""Keeps results that take long on disk: models, lowered models, plans, kernels and their weights.

The cache never raises an error and never returns a wrong entry. Everything read from it is compared
with a checksum; an entry that is damaged, missing or of another version is a miss and is made
again. Where the disk refuses a write, coexec keeps the entry in a folder of its own until the
process ends, and warns once (`CacheWarning`).
"""

from coexec.cache.entries import Entry
from coexec.cache.files import (
    DRAFTS,
    has_substitute,
    never_warn,
    private_folder,
    substitute,
    warn_once,
    write_whole,
)
from coexec.cache.folder import Cache, default_cache_folder
from coexec.cache.weights import Weights, rest

__all__ = [
    "DRAFTS",
    "Cache",
    "Entry",
    "Weights",
    "default_cache_folder",
    "has_substitute",
    "never_warn",
    "private_folder",
    "rest",
    "substitute",
    "warn_once",
    "write_whole",
]
