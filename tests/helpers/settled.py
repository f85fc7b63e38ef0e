"""Files that are old enough to be identified by their times."""

import time
from pathlib import Path

_TRUSTED_S = 2.5
"""The digest of a file that is younger than two seconds is not cached: see
`coexec.model.digest`."""


def settled(path: Path) -> None:
    """Wait until a cache would store the digest of the file's content."""
    young_s = time.time() - path.stat().st_ctime
    time.sleep(max(0.0, _TRUSTED_S - young_s))
