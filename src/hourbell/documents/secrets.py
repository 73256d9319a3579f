"""The document that sets a secret."""

import msgspec

from hourbell.documents.fields import Document, Field
from hourbell.documents.kinds import Integer, Label, Schema, String, one_of
from hourbell.documents.problems import Problems
from hourbell.model.texts import text_problem
from hourbell.security.secrets import MIN_CHARACTERS

MAX_CHARACTERS = 8_192
MAX_KEEP_SECONDS = 30 * 86_400


class NewSecret(msgspec.Struct, frozen=True):
    """A checked request to set a secret."""

    value: str | None  # None: generate one for signing
    keep_previous_seconds: int
    tenant_id: str | None


class _Value(String):
    """The value of a secret."""

    def read(self, value: object, path: str, problems: Problems) -> str | None:
        text = super().read(value, path, problems)
        if text is None:
            return None
        problem = text_problem(text)
        if problem is None and not MIN_CHARACTERS <= len(text) <= MAX_CHARACTERS:
            problem = f"must be {MIN_CHARACTERS} to {MAX_CHARACTERS} characters"
        if problem is not None:
            problems.add(path, "bad_format", problem)
        return text

    @property
    def schema(self) -> Schema:
        return {"type": "string", "minLength": MIN_CHARACTERS, "maxLength": MAX_CHARACTERS}


class SecretDocument(Document):
    value = Field(_Value())
    generate = Field(
        one_of("signing"), description="Instead of a value: generate a signing secret."
    )
    keep_previous_seconds = Field(
        Integer(0, MAX_KEEP_SECONDS),
        default=0,
        description="How long requests are also signed with the previous value.",
    )
    tenant_id = Field(Label())


def parse_new_secret(document: object) -> NewSecret:
    """The value that a document sets; raises InvalidInput with every invalid field."""
    problems = Problems()
    secret = SecretDocument.open(document, problems)
    value, generate = secret.value, secret.generate
    if value is None and generate is None:
        secret.require("value", 'is required, unless "generate": "signing" is given')
    elif value is not None and generate is not None:
        secret.wrong("generate", "conflict", "cannot be combined with value; send only one of them")
    keep, tenant_id = secret.keep_previous_seconds, secret.tenant_id
    secret.finish()
    problems.raise_if_any()
    return NewSecret(value, keep, tenant_id)
