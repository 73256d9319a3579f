"""Actions and notifications in documents: webhooks with their templates, and tasks."""

import re

from hourbell.documents.reader import ObjectReader
from hourbell.model.jobs import (
    MAX_BODY_BYTES,
    MAX_HEADERS,
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
    MAX_OF_REQUEST,
    SECRET_NAME,
    names_in,
    template_problem,
    texts_in,
)

_TASK = re.compile(r"[A-Za-z0-9._:-]{1,200}")
_TASK_IS = "1 to 200 letters, digits or . _ : -"
_SECRET_IS = "the name of a secret: 1 to 64 letters, digits or . _ -"
_EVENTS = {event.value: event for event in Event}
_METHODS = {method: method for method in METHODS}
_SECRETS_CHECKS = {choice.value: choice for choice in SecretsCheck}
_IS_MASK = (
    "is the mask shown in place of a credential, but no value is stored for this header; "
    "send the value itself, or {{secret:name}}"
)
_LITERAL_BODY = 'To send the body verbatim, including {{, set "literal": true next to it.'


def read_action(reader: ObjectReader) -> Action | None:
    reader.require("type", "is required: WEBHOOK or TASK")
    kind = reader.choice("type", {"WEBHOOK": _read_webhook, "TASK": _read_task}, None)
    if kind is None:
        return None  # the expected fields are unknown
    action = kind(reader)
    reader.finish()
    return action


def _read_webhook(reader: ObjectReader) -> Action | None:
    url = read_url(reader)
    method = reader.choice("method", _METHODS, "POST")
    headers = read_headers(reader)
    body = reader.json("body", MAX_BODY_BYTES)
    literal = reader.flag("literal")
    if not literal:
        check_templates(reader, "body", body)
    signing_secret = reader.text("signing_secret", SECRET_NAME, _SECRET_IS, None)
    secrets = read_secrets_check(reader)
    check_number_of_secrets(reader, url, headers, None if literal else body)
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


def read_url(reader: ObjectReader) -> str | None:
    """The URL of a webhook."""
    reader.require("url")
    url = reader.string("url")
    reason = None if url is None else url_problem(url)
    if reason:
        reader.wrong("url", "bad_format", reason)
    elif url is not None:
        _check_template(reader, "url", url, "Percent-encode { as %7B to send it verbatim.")
    return url


def read_headers(action: ObjectReader) -> dict[str, str]:
    """The headers of a webhook."""
    reader = action.inner("headers")
    if reader is None:
        return {}
    headers = reader.fields
    if len(headers) > MAX_HEADERS:
        action.wrong("headers", "too_long", f"must be at most {MAX_HEADERS} headers")
        return {}
    for name in headers:
        value = reader.string(name)
        if value is None:
            if headers[name] is None:
                reader.wrong(name, "wrong_type", "must be a string, not null")
            continue
        reason = header_problem(name, value)
        if reason:
            reader.wrong(name, "bad_format", reason)
        elif value == MASKED:
            reader.wrong(name, "bad_format", _IS_MASK)
        else:
            _check_template(reader, name, value, "A header value cannot contain a literal {{.")
    repeated = repeated_header(headers)
    if repeated is not None:
        reader.wrong(repeated, "conflict", "appears twice, in another spelling")
    return {name: value for name, value in headers.items() if isinstance(value, str)}


def read_secrets_check(reader: ObjectReader) -> SecretsCheck:
    """Whether the secrets of a webhook must already exist."""
    return reader.choice("secrets", _SECRETS_CHECKS, SecretsCheck.REQUIRED)


def check_number_of_secrets(reader: ObjectReader, *parts: object) -> None:
    """Record a problem if a webhook uses more secrets than one request may."""
    if len(names_in(list(parts))) > MAX_OF_REQUEST:
        reader.wrong(
            "url", "too_long", f"and headers and body use more than {MAX_OF_REQUEST} secrets"
        )


def check_templates(reader: ObjectReader, key: str, body: object) -> None:
    """Check the templates in all texts of a body, including keys."""
    for text in texts_in(body):
        _check_template(reader, key, text, _LITERAL_BODY)


def _check_template(reader: ObjectReader, key: str, text: str, otherwise: str) -> None:
    problem = template_problem(text)
    if problem is not None:
        end = "" if problem.endswith("?") else "."
        reader.wrong(key, "unknown_template", f"{problem}{end} {otherwise}")


def read_notification(reader: ObjectReader) -> Notification | None:
    reader.require("on")
    on = reader.choices("on", _EVENTS)
    url = read_url(reader)
    headers = read_headers(reader)
    secrets = read_secrets_check(reader)
    check_number_of_secrets(reader, url, headers)
    reader.finish()
    if url is None:
        return None
    return Notification(on=on, url=url, headers=headers, secrets=secrets)


def _read_task(reader: ObjectReader) -> Action | None:
    reader.require("name")
    name = reader.text("name", _TASK, _TASK_IS, None)
    payload = reader.json("payload", MAX_BODY_BYTES)
    return TaskAction(name=name, payload=payload) if name is not None else None
