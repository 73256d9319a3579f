"""The document of an API key."""

import msgspec

from hourbell.documents.fields import REQUIRED, Document, Field
from hourbell.documents.kinds import Label, Line, Short, choice_of
from hourbell.documents.problems import Problems
from hourbell.security.access import MAX_KEY_NAME, KeyRole

MAX_SENT_KEY = 200  # characters; anything longer is not a key


class NewKey(msgspec.Struct, frozen=True):
    """A checked request to create a key."""

    name: str
    role: KeyRole
    tenant_id: str | None


class KeyDocument(Document):
    name = Field(Line(MAX_KEY_NAME), required=REQUIRED)
    role = Field(
        choice_of(KeyRole), required=f"is required: {', '.join(role.value for role in KeyRole)}"
    )
    tenant_id = Field(Label())


class SignInDocument(Document):
    api_key = Field(Short(MAX_SENT_KEY), required=REQUIRED)


def parse_sign_in(document: object) -> str:
    """The API key of a browser that signs in; raises InvalidInput with every invalid field."""
    problems = Problems()
    sent = SignInDocument.open(document, problems)
    key = sent.api_key
    sent.finish()
    problems.raise_if_any()
    assert key is not None
    return key


def parse_new_key(document: object) -> NewKey:
    """The key that a document asks for; raises InvalidInput with every invalid field."""
    problems = Problems()
    key = KeyDocument.open(document, problems)
    name, role, tenant_id = key.name, key.role, key.tenant_id
    key.finish()
    if tenant_id is not None and role is KeyRole.WORKER:
        key.wrong(
            "tenant_id", "conflict", "a worker key has no tenant: queues are shared by all tenants"
        )
    problems.raise_if_any()
    assert name is not None
    assert role is not None
    return NewKey(name, role, tenant_id)
