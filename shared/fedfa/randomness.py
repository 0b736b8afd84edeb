"""The one source of every decision that is derived from a seed. PURE.

A decision is a pure function of (seed, purpose, numbers), so that any process, in any order and
after any crash, draws the same client, delay or partition.
"""

import hashlib


def prf(seed: int, purpose: str, *numbers: int) -> int:
    """An unpredictable 64-bit number, always the same for the same arguments."""
    # The length fixes where the purpose ends: no two argument lists make the same text.
    text = f"{seed}|{len(purpose)}:{purpose}|{','.join(map(str, numbers))}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def uniform(value: int) -> float:
    """A prf value as a float strictly between 0 and 1."""
    return ((value >> 12) + 0.5) / 2**52  # 52 bits and a half are exact in a float
