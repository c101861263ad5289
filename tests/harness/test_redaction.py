"""Secrets stay out of text, and URLs lose what may be one."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest

from harness.redaction import REDACTED, Redactor, strip_url

SECRET = 'sk-or/v1+"é" 42'


def test_a_secret_is_removed_in_plain_quoted_and_json_escaped_spelling() -> None:
    redact = Redactor([SECRET])
    text = f"plain {SECRET} quoted {quote(SECRET, safe='')} json {json.dumps({'k': SECRET})}"
    cleaned = redact(text)
    assert SECRET not in cleaned
    assert quote(SECRET, safe="") not in cleaned
    assert json.dumps(SECRET)[1:-1] not in cleaned
    assert cleaned.count(REDACTED) == 3
    assert SECRET not in repr(redact)


def test_a_secret_that_contains_another_is_removed_whole() -> None:
    assert Redactor(["abcd", "abcdefgh"])("x abcdefgh y abcd") == f"x {REDACTED} y {REDACTED}"


def test_blank_and_very_short_values_do_not_shred_text() -> None:
    assert Redactor(["", " ", "ab"])("abba abab") == "abba abab"


def test_credentials_of_the_environment_are_found_by_their_names() -> None:
    redact = Redactor.from_environ(
        {"OPENROUTER_API_KEY": "hunter2!", "PATH": "/usr/bin", "X_TOKEN": "t0ken"}, ["extra!"]
    )
    assert redact("hunter2! /usr/bin t0ken extra!") == f"{REDACTED} /usr/bin {REDACTED} {REDACTED}"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://user:pw@host:81/v1?key=1#x", "http://host:81/v1"),
        ("https://host/v1", "https://host/v1"),
        ("http://[::1]:80/a", "http://[::1]:80/a"),
        ("http://host:notaport/", "<invalid URL>"),
        ("//user:pw@", "<invalid URL>"),
        ("user:pw@host", "<invalid URL>"),
    ],
)
def test_a_shown_url_has_no_user_info_query_or_fragment(url: str, shown: str) -> None:
    assert strip_url(url) == shown
