"""The document in which a target reports the outcome of a request that it accepted earlier."""

import re

from hourbell.documents.fields import REQUIRED, Document, Field
from hourbell.documents.kinds import Json, Schema, String, Text, one_of
from hourbell.documents.problems import Problems
from hourbell.model.executions import (
    MAX_ERROR_CHARACTERS,
    MAX_RESULT_BYTES,
    Failed,
    Succeeded,
)


class _Error(String):
    """The message of a failure."""

    def read(self, value: object, path: str, problems: Problems) -> str | None:
        error = super().read(value, path, problems)
        if error is not None and len(error) > MAX_ERROR_CHARACTERS:
            message = f"must be at most {MAX_ERROR_CHARACTERS} characters"
            problems.add(path, "too_long", message)
        return error

    @property
    def schema(self) -> Schema:
        return {"type": "string", "maxLength": MAX_ERROR_CHARACTERS}


class CompletionDocument(Document):
    token = Field(
        Text(re.compile(r"[A-Za-z0-9_-]{1,128}"), "the token that came with the request"),
        required=REQUIRED,
        description="The value of the header Hourbell-Completion-Token.",
    )
    status = Field(one_of("SUCCEEDED", "FAILED"), required="is required: SUCCEEDED or FAILED")
    result = Field(
        Json(MAX_RESULT_BYTES),
        description=f"On success: any JSON value of up to {MAX_RESULT_BYTES} bytes.",
    )
    error = Field(_Error(), description="On failure: a human-readable message.")


def parse_completion(document: object) -> tuple[str, Succeeded | Failed]:
    """The token and the outcome in a document; raises InvalidInput with every invalid field."""
    problems = Problems()
    completion = CompletionDocument.open(document, problems)
    token, status = completion.token, completion.status
    if status == "SUCCEEDED":
        completion.forbid("error", "is not allowed with status SUCCEEDED")
    elif status == "FAILED":
        completion.forbid("result", "is not allowed with status FAILED")
    result, error = completion.result, completion.error
    completion.finish()
    problems.raise_if_any()
    assert token is not None
    if status == "SUCCEEDED":
        return token, Succeeded(result)
    return token, Failed(error or "The target reported a failure.", "reported")
