"""What schemathesis cannot know: whose key to use, and that another write takes another idempotency key."""

import os
from typing import Any
from uuid import uuid4

import schemathesis
from schemathesis.core.parameters import ParameterLocation


@schemathesis.auth()
class Key:
    def get(self, case: Any, context: Any) -> str:
        return os.environ["HOURBELL_TEST_KEY"]

    def set(self, case: Any, data: str, context: Any) -> None:
        case.headers["Authorization"] = f"Bearer {data}"


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    if case.meta is not None and case.meta.is_negative_at(ParameterLocation.HEADER):
        return  # one that has been changed would pass for a valid one, also if its key is made up
    if case.headers and case.headers.get("Idempotency-Key"):
        case.headers["Idempotency-Key"] = uuid4().hex
