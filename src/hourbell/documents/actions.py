"""Actions and notifications in documents: webhooks with their templates, and tasks."""

import re
from typing import Any

from hourbell.documents.fields import REQUIRED, Document, Field
from hourbell.documents.kinds import (
    Array,
    Boolean,
    Json,
    Kind,
    Schema,
    String,
    Text,
    choice_of,
    one_of,
)
from hourbell.documents.problems import Problems, shown_key
from hourbell.model.jobs import (
    MAX_BODY_BYTES,
    MAX_HEADERS,
    MAX_URL,
    METHODS,
    Action,
    Event,
    Notification,
    SecretsCheck,
    TaskAction,
    WebhookAction,
    header_problem,
    repeated_header,
    url_problem,
)
from hourbell.security.secrets import (
    MASKED,
    MAX_SECRETS_PER_REQUEST,
    SECRET_NAME,
    names_in,
    spelled_out,
    template_problem,
    texts_in,
)

_IS_MASK = (
    "is the mask shown in place of a credential, but no value is stored for this header; "
    "send the value itself, or {{secret:name}}"
)
_LITERAL_BODY = 'To send the body verbatim, including {{, set "literal": true next to it.'


class _Url(String):
    """The URL of a webhook."""

    def read(self, value: object, path: str, problems: Problems) -> str | None:
        url: str | None = spelled_out(super().read(value, path, problems))
        reason = None if url is None else url_problem(url)
        if reason:
            problems.add(path, "bad_format", reason)
        elif url is not None:
            otherwise = "Percent-encode { as %7B to send it verbatim."
            _check_template(problems, path, url, otherwise)
        return url

    @property
    def schema(self) -> Schema:
        return {"type": "string", "maxLength": MAX_URL, "pattern": "^https?://"}


class _Headers(Kind[dict[str, str]]):
    """The headers of a webhook."""

    def read(self, value: object, path: str, problems: Problems) -> dict[str, str] | None:
        if not isinstance(value, dict):
            problems.add_wrong_type(path, "an object", value)
            return None
        if len(value) > MAX_HEADERS:
            problems.add(path, "too_long", f"must have at most {MAX_HEADERS} headers")
            return None
        headers = {name: spelled_out(text) for name, text in value.items()}
        for name, text in headers.items():
            inner = f"{path}.{shown_key(name)}"
            if not isinstance(text, str):
                problems.add_wrong_type(inner, "a string", text)
                continue
            reason = header_problem(name, text)
            if reason:
                problems.add(inner, "bad_format", reason)
            elif text == MASKED:
                problems.add(inner, "bad_format", _IS_MASK)
            else:
                otherwise = "A header value cannot contain a literal {{."
                _check_template(problems, inner, text, otherwise)
        repeated = repeated_header(value)
        if repeated is not None:
            inner = f"{path}.{shown_key(repeated)}"
            problems.add(inner, "conflict", "appears twice, with different capitalization")
        return {name: text for name, text in headers.items() if isinstance(text, str)}

    @property
    def schema(self) -> Schema:
        texts = {"type": "string"}
        return {"type": "object", "maxProperties": MAX_HEADERS, "additionalProperties": texts}


class ActionDocument(Document):
    """An action of any type."""

    type = Field(one_of("WEBHOOK", "TASK"), required="is required: WEBHOOK or TASK")


class WebhookDocument(ActionDocument):
    url = Field(_Url(), required=REQUIRED)
    method = Field(one_of(*METHODS), default="POST")
    headers = Field(_Headers())
    body = Field(
        Json(MAX_BODY_BYTES),
        description=(
            "A string is sent verbatim, anything else as JSON; null means no body. {{secret:name}}, or "
            "{{name}} for short, is filled in; any other {{ is rejected unless literal is true."
        ),
    )
    signing_secret = Field(
        Text(SECRET_NAME, "the name of a secret: 1 to 64 letters, digits or . _ -"),
        description="The name of the secret to sign with, instead of `webhook-signing`.",
        omit_default=True,
    )
    literal = Field(
        Boolean(),
        default=False,
        description="The body is sent verbatim, including any {{; no secret is filled in.",
        omit_default=True,
    )
    secrets = Field(
        choice_of(SecretsCheck),
        default=SecretsCheck.REQUIRED,
        description="lazy: the named secrets need not exist until the request is sent.",
        omit_default=True,
    )


class TaskDocument(ActionDocument):
    name = Field(
        Text(re.compile(r"[A-Za-z0-9._:-]{1,200}"), "1 to 200 letters, digits or . _ : -"),
        required=REQUIRED,
    )
    payload = Field(Json(MAX_BODY_BYTES), description="Any JSON value.")


class NotificationDocument(Document):
    on = Field(Array(choice_of(Event), 1, len(Event), distinct=True), required=REQUIRED)
    url = WebhookDocument.url
    headers = WebhookDocument.headers
    secrets = WebhookDocument.secrets


def render_action(action: Action) -> dict[str, Any]:
    """An action as sent to a worker; secret placeholders are not filled in."""
    if isinstance(action, WebhookAction):
        return WebhookDocument.render(action, type="WEBHOOK")
    return TaskDocument.render(action, type="TASK")


def read_action(document: ActionDocument) -> Action | None:
    kind = document.type
    if kind is None:
        return None  # the expected fields are unknown
    if kind == "WEBHOOK":
        return _read_webhook(document.narrow(WebhookDocument))
    return _read_task(document.narrow(TaskDocument))


def _read_webhook(document: WebhookDocument) -> Action | None:
    url, method, headers = document.url, document.method, document.headers or {}
    body, literal = document.body, document.literal
    if not literal:
        body = read_templates(document, "body", body)
    signing_secret, secrets = document.signing_secret, document.secrets
    check_number_of_secrets(document, url, headers, None if literal else body)
    document.finish()
    if url is None:
        return None
    return WebhookAction(
        url=url,
        method=method,
        headers=headers,
        body=body,
        signing_secret=signing_secret,
        literal=literal,
        secrets=secrets,
    )


def _read_task(document: TaskDocument) -> Action | None:
    name, payload = document.name, document.payload
    document.finish()
    return TaskAction(name=name, payload=payload) if name is not None else None


def read_notification(document: NotificationDocument) -> Notification | None:
    on, url, headers = document.on, document.url, document.headers or {}
    secrets = document.secrets
    check_number_of_secrets(document, url, headers)
    document.finish()
    if on is None or url is None:
        return None
    return Notification(on=on, url=url, headers=headers, secrets=secrets)


def check_number_of_secrets(document: Document, *parts: object) -> None:
    """Record a problem if a webhook uses more secrets than one request may."""
    if len(names_in(list(parts))) > MAX_SECRETS_PER_REQUEST:
        document.wrong(
            "url",
            "too_long",
            f"uses more than {MAX_SECRETS_PER_REQUEST} secrets, counting headers and body",
        )


def read_templates(document: Document, key: str, body: object) -> object:
    """Spell out and check the templates in all strings of a body, including keys."""
    path = document.path(key)
    body = spelled_out(body)
    for text in texts_in(body):
        _check_template(document.problems, path, text, _LITERAL_BODY)
    return body


def _check_template(problems: Problems, path: str, text: str, otherwise: str) -> None:
    problem = template_problem(text)
    if problem is not None:
        end = "" if problem.endswith("?") else "."
        problems.add(path, "unknown_template", f"{problem}{end} {otherwise}")
