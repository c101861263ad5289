"""A candidate's Python file is read and never run; whatever is in it, it ends as a program or as a clear refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from judges.lasso_path.wrapper import MAX_CODE_BYTES, Wrapper, WrapperError, read_wrapper

PROGRAM = 'CPP_CODE = r"""int main() {}"""\n'


def read(text: str) -> Wrapper:
    return read_wrapper(text.encode())


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ('CPP_CODE = r"""a\\n"""', b"a\\n"),
        ("CPP_CODE = 'a\\n'", b"a\n"),
        ("CPP_CODE = ('a' 'b'\n  'c')", b"abc"),
        ("CPP_CODE: str = 'a'", b"a"),
        ("CPP_CODE: str\nCPP_CODE = 'a'", b"a"),
        ("OTHER = CPP_CODE = 'a'", b"a"),
        ("CPP_CODE = b'a\\xc3\\xa9'", "aé".encode()),
        ("CPP_CODE = 'é'", "é".encode()),
        ("CPP_CODE = 'a'\nCPP_CODE = 'b'", b"b"),
        ("\ufeffCPP_CODE = 'a'", b"a"),
        ("import os\nprint(len(CPP_CODE))\nCPP_CODE = 'a'\nif __name__ == '__main__':\n    print(CPP_CODE)", b"a"),
        ("CPP_CODE = 'a\\d'", b"a\\d"),
        ("CPP_CODE = 'a'\r\n", b"a"),
    ],
)
def test_a_literal_program_is_taken_as_it_stands(text: str, source: bytes) -> None:
    assert read(text) == Wrapper(source, ())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x = 1", "CPP_CODE is missing"),
        ("", "CPP_CODE is missing"),
        ("CPP_CODE = 'a' + 'b'", "must be one string literal"),
        ("CPP_CODE = 'a'.strip()", "must be one string literal"),
        ("CPP_CODE = f'a{1}'", "must be one string literal"),
        ("CPP_CODE = open('x').read()", "must be one string literal"),
        ("CPP_CODE = 7", "must be one string literal"),
        ("CPP_CODE = OTHER", "must be one string literal"),
        ("CPP_CODE = 'a'\nCPP_CODE += 'b'", "line 2: CPP_CODE may only be set by plain assignments"),
        ("if True:\n    CPP_CODE = 'a'", "line 2: CPP_CODE may only be set by plain assignments"),
        ("CPP_CODE, x = 'a', 'b'", "line 1: CPP_CODE may only be set by plain assignments"),
        ("for CPP_CODE in ['a']: pass", "may only be set by plain assignments"),
        ("(CPP_CODE := 'a')", "may only be set by plain assignments"),
        ("CPP_CODE = 'a'\ndel CPP_CODE", "may only be set by plain assignments"),
        ("CPP_CODE = 'a'\ndef f():\n    global CPP_CODE\n    CPP_CODE = 'b'", "line 4: CPP_CODE may only be set"),
        ("CPP_CODE = ' \\n '", "CPP_CODE is blank"),
        ("CPP_CODE = 'a\\0b'", "NUL byte"),
        ("CPP_CODE = '\\ud800'", "no text"),
        ("CPP_CODE = r'''int main() {", "not valid Python"),
        ("int main() {}", "not valid Python"),
    ],
)
def test_anything_else_is_the_candidates_fault_and_named(text: str, reason: str) -> None:
    with pytest.raises(WrapperError) as caught:
        read(text)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "taken"),
    [
        ("[]", ()),
        ("None", ()),
        ('["-O2", "-ffast-math"]', ("-O2", "-ffast-math")),
        ('("-mavx2", "-mtune=native", "-march=x86-64-v3")', ("-mavx2", "-mtune=native", "-march=x86-64-v3")),
        ('["-DNDEBUG", "-DEIGEN_NO_DEBUG=1", "-UX"]', ("-DNDEBUG", "-DEIGEN_NO_DEBUG=1", "-UX")),
        ('["-funroll-loops", "-flto", "-fopenmp"]', ("-funroll-loops", "-flto", "-fopenmp")),
        ('["-fno-math-errno", "-Ofast", "-O"]', ("-fno-math-errno", "-Ofast", "-O")),
        ('["-std=c++20", "-Wall", "-Wno-unused", "-g"]', ("-std=c++20", "-Wall", "-Wno-unused", "-g")),
        ('["-pthread", "-lm", "-static", "-s"]', ("-pthread", "-lm", "-static", "-s")),
    ],
)
def test_flags_that_tune_are_taken(flags: str, taken: tuple[str, ...]) -> None:
    assert read(f"{PROGRAM}COMPILE_FLAGS = {flags}").flags == taken


@pytest.mark.parametrize(
    "flag",
    [
        *("-o", "-o/w/x", "-I/etc", "-I", "-L/tmp", "-include", "-include/etc/passwd", "-imacros", "-isystem/etc"),
        *("@file", "@/etc/passwd", "-fplugin=/tmp/x.so", "-fplugin-arg-x", "-wrapper", "-x", "-xc", "-specs=/tmp/x"),
        *("-B/tmp", "-E", "-S", "-c", "-M", "-MF", "-###", "-v", "--sysroot=/", "--version", "-save-temps", "-dumpdir"),
        *("-Wl,-T/tmp/x", "-Wa,--help", "-Wp,-MD,x", "-Xlinker", "-Xassembler", "-l:x.a", "-lfoo", "-fuse-ld=gold"),
        *("-fdump-tree-all", "-fprofile-use=/tmp/x", "-fprofile-generate", "-fauto-profile", "-fsave-optimization"),
        *("-fsyntax-only", "-fsanitize=address", "-fdiagnostics-format=sarif-file", "-fmodules-ts", "-ftest-coverage"),
        *("-DX=\"a b\"", "-D X", "-DX=$(id)", "-O9x", "", " ", "-", "--", "main.cpp", "-std=c++11", "-f", "-m"),
        *("-fopt-info-all=/w/x", "-fcallgraph-info", "-frandom-seed=a/b", "-O2\n", "-O2 -o x", "-march=native,x"),
    ],
)
def test_flags_that_could_do_more_are_refused_by_name(flag: str) -> None:
    with pytest.raises(WrapperError, match=r"line 2: the compiler flag .* is not allowed; allowed are -O"):
        read(f"{PROGRAM}COMPILE_FLAGS = [{flag!r}]")


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ('"-O2"', "must be a list of string literals"),
        ('["-O2"] + ["-g"]', "must be a list of string literals"),
        ("list(FLAGS)", "must be a list of string literals"),
        ("[3]", "must be a string literal"),
        ("['-O2', *FLAGS]", "must be a string literal"),
        ("[b'-O2']", "must be a string literal"),
        (str(["-O2"] * 65), "65 flags"),
        ('["-O2"]\nCOMPILE_FLAGS.append("-g")', "line 3: COMPILE_FLAGS.append has no effect"),
        ('["-O2"]\nCOMPILE_FLAGS += ["-g"]', "line 3: COMPILE_FLAGS may only be set by plain assignments"),
    ],
)
def test_flags_that_are_no_plain_list_are_refused(flags: str, reason: str) -> None:
    with pytest.raises(WrapperError) as caught:
        read(f"{PROGRAM}COMPILE_FLAGS = {flags}")
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "code",
    [
        b"(" * 200_000,
        b"-" * 200_000 + b"1",
        b"a." * 100_000 + b"b",
        b"not " * 50_000 + b"1",
        b"lambda:" * 30_000 + b"1",
        b"9" * 200_000,
        b"\0",
        b"\xff\xfe\x00",
        b"x[" * 100_000,
        b"# coding: rot13\n",
        b"a" * (MAX_CODE_BYTES + 1),
    ],
    ids=lambda code: repr(code[:6]),
)
def test_hostile_bytes_are_refused_without_harm(code: bytes) -> None:
    with pytest.raises(WrapperError):
        read_wrapper(code)


def test_nothing_in_the_file_is_ever_run(tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    text = f"open({str(witness)!r}, 'w').close()\nimport sys; sys.exit(3)\n{PROGRAM}raise SystemExit\n"
    assert read(text).source == b"int main() {}"
    assert not witness.exists()


def test_a_strange_escape_in_a_candidate_leaves_no_line_in_the_log(recwarn: pytest.WarningsRecorder) -> None:
    read("CPP_CODE = '\\d \\w'")
    assert list(recwarn) == []
