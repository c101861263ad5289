#!/usr/bin/env bash
# Makes everything that run.sh and test.sh need: system tools, a virtual environment, the locked packages.
# Does only what is not done yet, so a second call takes a moment.  Interrupt it freely: the next call continues.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: scripts/setup.sh [--eigen] [--chromium]

  --eigen     also check for the Eigen headers (the lasso_path judge)
  --chromium  also check for the browser that the report's tests drive

Environment:
  GUIDANCE_PYTHON       the Python to use (3.12 or 3.13); default: the first one found
  GUIDANCE_TORCH_INDEX  package index to take torch from, e.g. one with CPU builds; default: as locked

Exit codes: 0 ready; 1 the installation failed; 3 something is missing that you must install (the command is printed).
TEXT
}

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
VENV="$ROOT/.venv"
STAMP="$VENV/guidance-setup.stamp"
UNFINISHED="$VENV/guidance-setup.unfinished"
LOCK="$ROOT/requirements.lock"
# shellcheck disable=SC2034  # used by lib.sh
TOOLS_DIR="$ROOT/work/tools"
SETUP_FORMAT=1
INSTALL_MB=6000
INSTALL_CPU_MB=2000
# shellcheck source=scripts/lib.sh
source "$ROOT/scripts/lib.sh"

# What the installation depends on; the same line in the stamp means that nothing is left to do.
fingerprint() {
    "$VENV/bin/python" - "$SETUP_FORMAT" "$ROOT" "${GUIDANCE_TORCH_INDEX:-}" "$LOCK" "$ROOT/pyproject.toml" <<'PYTHON'
import hashlib, sys
form, root, index, *paths = sys.argv[1:]
digest = hashlib.sha256(repr((form, index, sys.version)).encode())
for path in paths:
    with open(path, "rb") as stream:
        digest.update(hashlib.sha256(stream.read()).digest())
print(digest.hexdigest(), root)
PYTHON
}

# The environment starts, is of a supported version, and was made in this very folder (its scripts hold the path).
venv_works() {
    [ -x "$VENV/bin/python" ] && [ -f "$VENV/pyvenv.cfg" ] && real_python "$VENV/bin/python" >/dev/null || return 1
    [ ! -f "$STAMP" ] || [ "$(cut -d' ' -f2- <"$STAMP")" = "$ROOT" ]
}

is_ready() {
    [ -f "$STAMP" ] && venv_works && [ "$(fingerprint)" = "$(cat "$STAMP")" ]
}

make_venv() {
    local uv="$1" python
    if venv_works; then
        return 0
    fi
    if [ -e "$VENV" ]; then
        say "$VENV does not work (moved, or its Python is gone); making it anew"
        rm -rf "$VENV"
    fi
    if ! python=$(find_python); then
        [ -z "${GUIDANCE_PYTHON:-}" ] || exit "$EXIT_MISSING"
        say "no Python 3.12 or 3.13 was found; asking uv for one"
        if ! "$uv" python install 3.12 >&2 || ! python=$("$uv" python find --managed-python 3.12); then
            say "install Python 3.12 (with its venv module), or name one with GUIDANCE_PYTHON=/path/to/python3.12"
            exit "$EXIT_MISSING"
        fi
    fi
    say "making $VENV with $python"
    "$uv" venv --quiet --no-project --python "$python" "$VENV" >&2 || fail "$VENV could not be made with $python"
}

install_packages_locked() {
    local uv="$1" lock="$LOCK"
    local -a pip=("$uv" pip install --python "$VENV/bin/python" --no-deps)
    [ -t 2 ] || pip+=(--quiet) # progress bars are for terminals
    if [ -e "$UNFINISHED" ]; then
        say "an earlier set-up was interrupted; installing every package afresh"
        pip+=(--reinstall) # a half-written package may look installed
    fi
    : >"$UNFINISHED"
    if [ -n "${GUIDANCE_TORCH_INDEX:-}" ]; then
        lock="$VENV/requirements.without-torch.lock"
        without_torch "$LOCK" >"$lock"
    fi
    say "installing the locked packages (a few minutes the first time)"
    "${pip[@]}" --require-hashes -r "$lock" >&2 || return 1
    if [ -n "${GUIDANCE_TORCH_INDEX:-}" ]; then
        say "installing torch from GUIDANCE_TORCH_INDEX"
        "${pip[@]}" --index-url "$GUIDANCE_TORCH_INDEX" "torch==$(locked_version "$LOCK" torch)" >&2 || return 1
    fi
    "${pip[@]}" --no-build-isolation --editable "$ROOT" >&2 || return 1
    rm -f "$UNFINISHED"
}

# Space for what is not on disk yet; an interrupted installation counts for what it left.
check_disk() {
    local needed=$INSTALL_MB present=0
    [ -z "${GUIDANCE_TORCH_INDEX:-}" ] || needed=$INSTALL_CPU_MB
    if [ -d "$VENV" ]; then
        present=$(du -sm "$VENV" 2>/dev/null | cut -f1)
    fi
    needed=$((needed - ${present:-0}))
    [ "$needed" -le 0 ] || require_disk "$ROOT" "$needed"
}

install_all() {
    local uv
    check_disk || exit "$?"
    uv=$(find_uv) || uv=$(install_uv) || exit "$?"
    make_venv "$uv"
    rm -f "$STAMP"
    install_packages_locked "$uv" ||
        fail "the packages could not be installed; check the network and the disk, then run this command again (it continues)"
    fingerprint >"$STAMP.new"
    mv "$STAMP.new" "$STAMP" # last: an interrupted set-up has no stamp
    say "set-up is complete"
}

main() {
    local -a extras=()
    for argument in "$@"; do
        case "$argument" in
            --eigen | --chromium) extras+=("${argument#--}") ;;
            -h | --help)
                usage
                exit 0
                ;;
            *) fail "unknown option: $argument (see scripts/setup.sh --help)" 2 ;;
        esac
    done
    ensure_system_tools "${extras[@]}" || exit "$?"
    is_ready && return 0
    mkdir -p "$ROOT/work"
    (
        # Two set-ups at once would write into the same environment; the second waits, then finds the work done.
        if command -v flock >/dev/null 2>&1; then
            flock 9
        fi
        is_ready || install_all
    ) 9>"$ROOT/work/.setup.lock"
}

main "$@"
