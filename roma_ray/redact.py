"""Keeping secrets out of everything that is written or shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

MASK = "***"
_SECRET_NAME = re.compile(
    r"(?i)(^|[_\-.])(api[_-]?key|access[_-]?key|secret|password|passwd|authorization|credential)s?$|(^|[_\-.])token$"
)
# By the text that each begins with: looking for that first makes a prompt without secrets 50 times cheaper.
_SECRET_TEXTS = {
    "sk-": re.compile(r"\bsk-[A-Za-z0-9_\-]{8,}"),
    "AKIA": re.compile(r"\bAKIA[0-9A-Z]{12,}"),
    **{f"gh{kind}_": re.compile(rf"\bgh{kind}_[A-Za-z0-9]{{20,}}") for kind in "pousr"},
    **{f"xox{kind}-": re.compile(rf"\bxox{kind}-[A-Za-z0-9\-]{{10,}}") for kind in "abpr"},
    "Bearer ": re.compile(r"(?P<keep>Bearer )[A-Za-z0-9._\-]{8,}"),
    "://": re.compile(r"(?P<keep>://)[^/\s:@]*:[^/\s]+(?=@)"),
    "password=": re.compile(r"(?P<keep>[?&]password=)[^&\s]+"),
}
_SHORTEST_SECRET = 6


class Secret:
    """A text with a masked repr, str and format; `reveal` gives it out. Pickles, so that workers can be sent keys."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Secret({MASK!r})"

    def __str__(self) -> str:
        return MASK

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        return (Secret, (self._text,))


class Redactor:
    """Masks known secrets, and what looks like one, in texts and plain data."""

    def __init__(self, secrets: Iterable[Secret | str] = ()) -> None:
        known = {s.reveal() if isinstance(s, Secret) else s for s in secrets}
        # Longest first, so that a secret that contains another is masked whole.
        self._known = sorted((s for s in known if len(s) >= _SHORTEST_SECRET), key=len, reverse=True)

    def text(self, text: str) -> str:
        """`text` with every secret replaced by `***`."""
        for secret in self._known:
            if secret in text:
                text = text.replace(secret, MASK)
        for start, pattern in _SECRET_TEXTS.items():
            if start in text:
                text = pattern.sub(rf"\g<keep>{MASK}" if pattern.groups else MASK, text)
        return text

    def data(self, data: Any) -> Any:
        """A copy of plain data with secrets masked in every string and under every secret-looking key."""
        if isinstance(data, str):
            return self.text(data)
        if isinstance(data, Mapping):
            return {
                k: MASK if is_secret_name(str(k)) and v not in (None, "") else self.data(v) for k, v in data.items()
            }
        if isinstance(data, list | tuple):
            return [self.data(item) for item in data]
        return MASK if isinstance(data, Secret) else data


def is_secret_name(name: str) -> bool:
    """Whether a config or argument name holds a secret: `api_key`, `auth_token`, `password`; not `max_tokens`."""
    return bool(_SECRET_NAME.search(name))
