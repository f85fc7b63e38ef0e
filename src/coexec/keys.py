"""Digests: short texts that identify facts, for keys of caches and names of stored results.

A digest is xxh3-128, see https://xxhash.com: it is fast, and collisions do not happen by chance. It
is no protection against deliberate collisions.
"""

import xxhash


def digest(*facts: object, digits: int = 32) -> str:
    """Hexadecimal digits that are equal for equal facts, on every machine.

    Args:
        facts: bytes count by their content, all other objects by their `repr`.
        digits: number of digits, at most 32; 8 are only enough for people who compare them.
    """
    state = xxhash.xxh3_128()
    for fact in facts:
        content = fact if isinstance(fact, bytes) else repr(fact).encode()
        kind = b"bytes" if content is fact else b"repr"
        # The kind and the length separate the facts: ("ab", "c") differs from ("a", "bc").
        state.update(b"%s %d " % (kind, len(content)))
        state.update(content)
    return state.hexdigest()[:digits]
