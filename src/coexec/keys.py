"""One way to tell things apart by a short text: keys of caches, and names of what was made of them.

A digest is xxh3-128, see https://xxhash.com: quick, and no two things meet by chance. It is no
protection against somebody who wants them to meet.
"""

import xxhash

__all__ = ["digest"]


def digest(*facts: object, digits: int = 32) -> str:
    """Hexadecimal digits that are equal for equal facts, on every machine.

    Args:
        facts: bytes count by their content, everything else by its `repr`.
        digits: how many, 32 at most; as few as 8 only tell what people compare.
    """
    state = xxhash.xxh3_128()
    for fact in facts:
        content = fact if isinstance(fact, bytes) else repr(fact).encode()
        kind = b"bytes" if content is fact else b"repr"
        state.update(b"%s %d " % (kind, len(content)))  # so that no two facts read as one
        state.update(content)
    return state.hexdigest()[:digits]
