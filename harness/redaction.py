"""Keeps secrets out of everything that is logged, stored, raised or reported."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, quote_plus, urlsplit, urlunsplit

REDACTED = "[redacted]"
_MIN_SECRET_CHARS = 4
_SECRET_NAME = re.compile(r"(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)


class Redactor:
    """Replaces every known secret value, also in its URL-quoted and JSON-escaped spelling.

    Values shorter than four characters are left alone: replacing them would shred ordinary text.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        spellings: set[str] = set()
        for secret in secrets:
            value = secret.strip()
            if len(value) >= _MIN_SECRET_CHARS:
                spellings |= {value, quote(value, safe=""), quote_plus(value), json.dumps(value)[1:-1]}
        # Longest first, so that a secret that contains another is replaced whole.
        ordered = sorted(spellings, key=lambda spelling: (-len(spelling), spelling))
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], extra: Iterable[str] = ()) -> Redactor:
        """A redactor of every variable whose name ends like a credential's, plus `extra` values."""
        return cls([value for name, value in environ.items() if _SECRET_NAME.search(name)] + list(extra))

    def __call__(self, text: str) -> str:
        """The text without any known secret."""
        return text if self._pattern is None else self._pattern.sub(REDACTED, text)

    def __repr__(self) -> str:
        return f"Redactor({'active' if self._pattern else 'empty'})"


def without_secrets(environ: Mapping[str, str], *, keep: Iterable[str] = ()) -> dict[str, str]:
    """The variables less every one whose name ends like a credential's, except those in `keep`."""
    kept = set(keep)
    return {name: value for name, value in environ.items() if name in kept or not _SECRET_NAME.search(name)}


def strip_url(url: str) -> str:
    """The URL without user info, query and fragment: what may be shown, logged and stored."""
    try:
        parts = urlsplit(url.strip())
        host = parts.hostname or ""
        port = parts.port
    except ValueError:
        return "<invalid URL>"
    if ":" in host:
        host = f"[{host}]"
    if not host and "@" in url:
        return "<invalid URL>"
    return urlunsplit((parts.scheme, f"{host}:{port}" if port is not None else host, parts.path, "", ""))
