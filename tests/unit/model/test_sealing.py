import base64

import pytest

from hourbell.model.errors import ConfigurationError, NoSecretKeys
from hourbell.security.sealing import KeyRing, Sealed

KEY = base64.b64encode(bytes(32)).decode()


def test_what_was_sealed_opens_for_what_it_belongs_to_only():
    ring = KeyRing.parse(KeyRing.generate())
    sealed = ring.seal("the value", "acme token")
    changed = sealed.content[:-1] + bytes([sealed.content[-1] ^ 1])
    assert ring.open(sealed, "acme token") == "the value"
    with pytest.raises(NoSecretKeys):
        ring.open(sealed, "globex token")
    with pytest.raises(NoSecretKeys):
        ring.open(Sealed(changed, sealed.by), "acme token")


def test_the_same_value_is_sealed_differently_each_time():
    ring = KeyRing.parse(KeyRing.generate())
    assert ring.seal("the value", "it").content != ring.seal("the value", "it").content


def test_the_first_key_seals_and_all_open():
    new = KeyRing.generate()
    old, both = KeyRing.parse(f"old:{KEY}"), KeyRing.parse(f"{new},old:{KEY}")
    assert both.sealing_key == new.partition(":")[0]
    assert both.open(old.seal("the value", "it"), "it") == "the value"


def test_without_keys_nothing_is_sealed_or_opened():
    with pytest.raises(NoSecretKeys):
        KeyRing.parse("").seal("the value", "it")
    with pytest.raises(NoSecretKeys):
        KeyRing.parse("").open(Sealed(bytes(40), "k1"), "it")


@pytest.mark.parametrize(
    "text",
    [KEY, f"k1:{KEY[:-4]}", "k1:", f":{KEY}", f"k 1:{KEY}", f"k1:{KEY},k1:{KEY}", f"k1:{KEY}!"],
)
def test_a_ring_that_cannot_be_read_is_refused_without_showing_it(text: str):
    with pytest.raises(ConfigurationError) as caught:
        KeyRing.parse(text)
    assert KEY[:10] not in caught.value.message
