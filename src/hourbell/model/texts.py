"""Which texts can be stored."""


def text_problem(text: str) -> str | None:
    """Why a text cannot be stored, or None: PostgreSQL rejects NUL, and UTF-8 rejects lone surrogates."""
    if "\0" in text:
        return "must not contain the NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "must not contain an unpaired surrogate"
    return None
