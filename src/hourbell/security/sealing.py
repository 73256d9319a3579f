"""Sealing: encryption of secrets at rest with AES-256-GCM.

A sealed value is a nonce and a ciphertext, bound to its owner: one that is moved to another tenant
or name cannot be decrypted. Keys have names, which are stored with the values that they sealed. The
first key of a ring seals, all of them open. To rotate, put a new key first, reseal everything
(`hourbell secrets rotate`), then remove the old one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from hourbell.model.errors import ConfigurationError, MissingExtra, NoSecretKeys

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
_NONCE_BYTES = 12
_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")


class Sealed(msgspec.Struct, frozen=True):
    """A value that only the key with this name can decrypt."""

    content: bytes
    by: str


class KeyRing:
    """The keys for secrets; the first one seals. An empty ring can neither seal nor open."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = dict(keys)

    @classmethod
    def parse(cls, text: str) -> KeyRing:
        """A ring from `name:base64,name:base64`; raises ConfigurationError, which shows no key."""
        keys: dict[str, bytes] = {}
        for number, part in enumerate(filter(None, text.split(",")), 1):
            name, _, encoded = part.strip().partition(":")
            try:
                key = base64.b64decode(encoded, validate=True)
            except (binascii.Error, ValueError):
                key = b""
            if not _NAME.fullmatch(name) or len(key) != KEY_BYTES or name in keys:
                raise ConfigurationError(
                    f"key {number} must be name:key, with a unique name and {KEY_BYTES} bytes in "
                    f"base64"
                )
            keys[name] = key
        return cls(keys)

    @staticmethod
    def generate() -> str:
        """A ring of one new key, as `parse` reads it; its name can stand beside that of another."""
        return (
            f"k{secrets.token_hex(3)}:{base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()}"
        )

    @property
    def sealing_key(self) -> str:
        """The name of the key that seals."""
        if not self._keys:
            raise NoSecretKeys("This process has no key to encrypt secrets.")
        return next(iter(self._keys))

    def seal(self, value: str, belongs_to: str) -> Sealed:
        name = self.sealing_key
        nonce = secrets.token_bytes(_NONCE_BYTES)
        content = _cipher(self._keys[name]).encrypt(nonce, value.encode(), belongs_to.encode())
        return Sealed(nonce + content, name)

    def open(self, sealed: Sealed, belongs_to: str) -> str:
        key = self._keys.get(sealed.by)
        if key is None:
            raise NoSecretKeys(
                f"This process does not have the key {sealed.by}, which encrypted a secret."
            )
        cipher = _cipher(key)
        from cryptography.exceptions import InvalidTag

        nonce, content = sealed.content[:_NONCE_BYTES], sealed.content[_NONCE_BYTES:]
        try:
            return cipher.decrypt(nonce, content, belongs_to.encode()).decode()
        except InvalidTag:
            raise NoSecretKeys(
                f"A secret cannot be decrypted with the key {sealed.by}: this process has a different key "
                f"with the same name."
            ) from None

    def macs(self, message: bytes) -> list[bytes]:
        """MACs of a message, which disclose nothing without the keys, even if few messages exist.

        One per key, the sealing key first.
        """
        return [hmac.new(key, message, hashlib.sha256).digest() for key in self._keys.values()]


def _cipher(key: bytes) -> AESGCM:
    # Imported here, because a worker of the library has no secrets and no cryptography.
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ModuleNotFoundError:
        raise MissingExtra("The encryption of secrets", ["server"]) from None
    return AESGCM(key)
