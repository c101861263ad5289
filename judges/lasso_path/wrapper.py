"""Reads the C++ program and its compiler flags out of a candidate's Python file, without ever running it.

The file is parsed, not imported: only constants are taken, so nothing in it can touch the judge.  A value that would
have to be computed is refused, and so is a compiler flag that could do more than tune the code.
"""

from __future__ import annotations

import ast
import re
import threading
import warnings
from dataclasses import dataclass

PROGRAM_NAME = "CPP_CODE"
FLAGS_NAME = "COMPILE_FLAGS"
MAX_CODE_BYTES = 256 * 1024
MAX_FLAGS = 64
MAX_FLAG_CHARS = 120

ALLOWED_FLAGS = (
    "-O..., -f... (no plugins, dumps, profiles or other linkers), -m..., -D..., -U..., -W... (warnings only), -w, -g, "
    "-s, -pipe, -pthread, -std=c++17 to c++23, -static, -static-libgcc, -static-libstdc++, -lm, -lpthread, -lgomp"
)
_WORD = r"[A-Za-z0-9_+.=-]"
_ALLOWED = re.compile(
    r"-O[0-3gsz]?|-Ofast|-w|-g[0-3]?|-s|-pipe|-pthread|-static|-static-libgcc|-static-libstdc\+\+"
    r"|-std=(?:c|gnu)\+\+(?:17|1z|20|2a|23|2b)|-l(?:m|pthread|gomp)"
    rf"|-[fm]{_WORD}+|-D[A-Za-z_]\w*(?:=[A-Za-z0-9_+.-]*)?|-U[A-Za-z_]\w*|-W[a-z]{_WORD}*"
)
# These look like tuning but load code, write files, change what is run or turn the compiler into something else.
_REFUSED = re.compile(
    r"-f(?:plugin|dump|profile|auto-profile|branch-probabilities|use-ld|compare-debug|syntax-only|save-|"
    r"callgraph-info|stack-usage|opt-info|diagnostics|sanitize|test-coverage|coverage|(?:file|macro|debug|canon)-prefix|"
    r"module|preprocessed|working-directory|lto-|offload|sanitize).*|-m(?:no-)?sanitize.*"
)
_WARNINGS_LOCK = threading.Lock()


class WrapperError(ValueError):
    """The candidate's file cannot be used; the message says what is wrong and what to write instead."""


@dataclass(frozen=True)
class Wrapper:
    """What counts of a candidate's file."""

    source: bytes
    flags: tuple[str, ...]


def read_wrapper(code: bytes) -> Wrapper:
    """The program and flags of a candidate; raises `WrapperError`, whatever bytes are given."""
    tree = _parse(code)
    program = _constant(tree, PROGRAM_NAME)
    if program is None:
        raise WrapperError(f'{PROGRAM_NAME} is missing: write {PROGRAM_NAME} = r"""...""" at the top level of the file')
    flags = _constant(tree, FLAGS_NAME)
    return Wrapper(_source(program), () if flags is None else _flags(flags))


def _parse(code: bytes) -> ast.Module:
    if len(code) > MAX_CODE_BYTES:
        raise WrapperError(f"the file has {len(code)} bytes; at most {MAX_CODE_BYTES} are taken")
    try:
        text = code.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise WrapperError(f"the file is not UTF-8 (byte {error.start})") from None
    # Invalid escapes in a candidate's strings are worth no line in the judge's log.
    with _WARNINGS_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError) as error:
            where = f" (line {error.lineno})" if isinstance(error, SyntaxError) and error.lineno else ""
            raise WrapperError(f"the file is not valid Python: {str(error)[:200]}{where}") from None
        except (RecursionError, MemoryError):
            raise WrapperError("the file is not valid Python: it is nested too deeply") from None


def _constant(tree: ast.Module, name: str) -> ast.expr | None:
    """The value of the last top-level assignment to `name`, or None; any other way of setting it is refused."""
    values: list[ast.expr] = []
    plain: set[int] = set()
    for statement in tree.body:
        targets, value = _assignment(statement)
        for target in targets:
            if isinstance(target, ast.Name) and target.id == name:
                plain.add(id(target))
                values += [] if value is None else [value]
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == name:
            if not isinstance(node.ctx, ast.Load) and id(node) not in plain:
                raise WrapperError(f"line {node.lineno}: {name} may only be set by plain assignments at the top level")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name:
            raise WrapperError(f"line {node.lineno}: {name}.{node.attr} has no effect: the file is read, not run")
    return values[-1] if values else None


def _assignment(statement: ast.stmt) -> tuple[list[ast.expr], ast.expr | None]:
    match statement:
        case ast.Assign(targets=targets, value=value):
            return targets, value
        case ast.AnnAssign(target=target, value=value):
            return [target], value
        case _:
            return [], None


def _source(value: ast.expr) -> bytes:
    match value:
        case ast.Constant(value=str() as text):
            try:
                source = text.encode("utf-8")
            except UnicodeEncodeError:
                raise WrapperError(f"line {value.lineno}: {PROGRAM_NAME} holds characters that are no text") from None
        case ast.Constant(value=bytes() as data):
            source = data
        case _:
            raise WrapperError(
                f"line {value.lineno}: {PROGRAM_NAME} must be one string literal; the file is read, not run, so "
                "nothing in it is computed (no f-string, no +, no call such as .strip())"
            )
    if not source.strip():
        raise WrapperError(f"line {value.lineno}: {PROGRAM_NAME} is blank")
    if b"\0" in source:
        raise WrapperError(f"line {value.lineno}: {PROGRAM_NAME} holds a NUL byte")
    return source


def _flags(value: ast.expr) -> tuple[str, ...]:
    match value:
        case ast.Constant(value=None):
            return ()
        case ast.List(elts=items) | ast.Tuple(elts=items):
            flags = tuple(_flag(item) for item in items)
        case _:
            raise WrapperError(
                f"line {value.lineno}: {FLAGS_NAME} must be a list of string literals; the file is read, not run, so "
                "nothing in it is computed"
            )
    if len(flags) > MAX_FLAGS:
        raise WrapperError(f"line {value.lineno}: {FLAGS_NAME} holds {len(flags)} flags; at most {MAX_FLAGS} are taken")
    return flags


def _flag(item: ast.expr) -> str:
    if not isinstance(item, ast.Constant) or not isinstance(item.value, str):
        raise WrapperError(f"line {item.lineno}: every entry of {FLAGS_NAME} must be a string literal")
    flag = item.value
    if len(flag) > MAX_FLAG_CHARS or not _ALLOWED.fullmatch(flag) or _REFUSED.match(flag):
        raise WrapperError(
            f"line {item.lineno}: the compiler flag {flag[:40]!r} is not allowed; allowed are {ALLOWED_FLAGS}"
        )
    return flag
