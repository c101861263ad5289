"""Reads a submission out of a multipart request: bounded, byte for byte, and never by raising anything but a 4xx."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from aiohttp import BodyPartReader, hdrs, web

from judges.protocol import BadSubmission

CODE_BYTES = 1 << 20
FIELD_BYTES = 200
UPLOAD_TIMEOUT_S = 30.0
# Room for boundaries and part headers around the largest code.
BODY_BYTES = CODE_BYTES + 64 * 1024
_MAX_PARTS = 8
_HINT = "send multipart/form-data with the fields pid, lang and code (a file part), each once"


@dataclass(frozen=True)
class Upload:
    """The three fields of a submission, present and not empty, not yet checked for meaning."""

    pid: str
    lang: str
    code: bytes


async def read_upload(request: web.Request) -> Upload:
    """The submission in a request; raises `BadSubmission` saying what is wrong with it."""
    if request.content_type != "multipart/form-data":
        raise BadSubmission(f"content type {request.content_type[:80]!r} is not multipart/form-data", _HINT)
    if request.content_length is not None and request.content_length > BODY_BYTES:
        raise BadSubmission(
            f"the request has {request.content_length} bytes", f"code is limited to {CODE_BYTES} bytes", status=413
        )
    try:
        async with asyncio.timeout(UPLOAD_TIMEOUT_S):
            fields = await _read_fields(request)
    except TimeoutError as error:
        raise BadSubmission(
            f"the request did not arrive within {UPLOAD_TIMEOUT_S:.0f} s", "send it again", status=408
        ) from error
    missing = [name for name in ("pid", "lang", "code") if name not in fields]
    if missing:
        raise BadSubmission(f"missing field(s): {', '.join(missing)}", _HINT)
    if not fields["code"].strip():
        raise BadSubmission("code is empty", "send the program's source as the part `code`")
    return Upload(pid=_text(fields, "pid"), lang=_text(fields, "lang"), code=fields["code"])


async def _read_fields(request: web.Request) -> dict[str, bytes]:
    fields: dict[str, bytes] = {}
    try:
        reader = await request.multipart()
        for _ in range(_MAX_PARTS + 1):
            part = await reader.next()
            if part is None:
                return fields
            if not isinstance(part, BodyPartReader):
                raise BadSubmission("nested multipart bodies are not accepted", _HINT)
            await _read_part(part, fields)
    except BadSubmission:
        raise
    except web.HTTPException as error:
        raise BadSubmission(f"invalid multipart submission: {error.reason}", _HINT) from error
    except Exception as error:
        # The parser raises many kinds of exception for broken bodies, assertion errors among them.
        detail = str(error)[:200] or type(error).__name__
        raise BadSubmission(f"invalid multipart submission: {detail}", _HINT) from error
    raise BadSubmission(f"more than {_MAX_PARTS} parts", _HINT)


async def _read_part(part: BodyPartReader, fields: dict[str, bytes]) -> None:
    name = part.name
    if name not in ("pid", "lang", "code"):
        # Read but not kept, so that an extra field does no harm; the size of the whole body is bounded by the caller.
        await _read_bounded(part, "extra field", BODY_BYTES)
        return
    if name in fields:
        raise BadSubmission(f"field {name} is given twice", _HINT)
    coding = part.headers.get(hdrs.CONTENT_TRANSFER_ENCODING, "binary").strip().lower()
    if coding not in ("binary", "8bit", "7bit") or hdrs.CONTENT_ENCODING in part.headers:
        raise BadSubmission(f"field {name} is sent with the encoding {coding[:40]!r}", "send the bytes as they are")
    fields[name] = await _read_bounded(part, f"field {name}", CODE_BYTES if name == "code" else FIELD_BYTES)


async def _read_bounded(part: BodyPartReader, what: str, limit: int) -> bytes:
    data = bytearray()
    while chunk := await part.read_chunk(1 << 16):
        data += chunk
        if len(data) > limit:
            raise BadSubmission(f"{what} is longer than {limit} bytes", "send a shorter one", status=413)
    if not part.at_eof():
        raise BadSubmission(f"{what} is cut off", _HINT)
    return bytes(data)


def _text(fields: dict[str, bytes], name: str) -> str:
    try:
        text = fields[name].decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise BadSubmission(f"field {name} is not UTF-8", _HINT) from error
    if not text:
        raise BadSubmission(f"field {name} is empty", _HINT)
    return text
