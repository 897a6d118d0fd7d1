"""Seal a file with a key: without the key, its content cannot be read, changed, shortened or reordered.

The file is sealed in parts with AES-GCM. A key is used for one file only, so the number of a part may be its nonce.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from hardwon.memory.errors import require_extra

KEY_BYTES = 32
PART = 2**20
"""Bytes of the content of a part; the last one may be shorter."""
_TAG_BYTES = 16
"""Bytes by which a sealed part is longer."""


class BrokenSeal(Exception):
    """The file was changed, or belongs to another key."""


def _open_cipher(key: bytes) -> Any:
    with require_extra("storage"):
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    return AESGCM(key)


def _mark_last(parts: Iterable[bytes]) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield the nonce of each part, the part, and a mark that tells the last one from the others."""
    before: bytes | None = None
    number = 0
    for number, part in enumerate(parts):
        if before is not None:
            yield (number - 1).to_bytes(12), before, b""
        before = part
    if before is not None:
        yield number.to_bytes(12), before, b"last"


def seal(parts: Iterable[bytes], key: bytes) -> Iterator[bytes]:
    """Yield the sealed parts of a file."""
    cipher = _open_cipher(key)
    for nonce, part, mark in _mark_last(parts):
        yield cipher.encrypt(nonce, part, mark)


def unseal(read: Any, key: bytes) -> Iterator[bytes]:
    """Yield the content of a sealed file."""
    cipher = _open_cipher(key)
    with require_extra("storage"):
        from cryptography.exceptions import InvalidTag
    try:
        for nonce, part, mark in _mark_last(iter(lambda: read(PART + _TAG_BYTES), b"")):
            yield cipher.decrypt(nonce, part, mark)
    except InvalidTag:
        raise BrokenSeal from None
