# Functions shared by setup.sh, run.sh and test.sh.  Sourced, never run; defines functions only.
# Every function prints its result on stdout and talks to the user on stderr.
# shellcheck shell=bash

# Exit code for "this machine lacks something that only its owner can install".
EXIT_MISSING=3

say() { printf '%s\n' "$*" >&2; }

fail() {
    say "error: $1"
    exit "${2:-1}"
}

# --- Python -----------------------------------------------------------------------------------------------------------

# The lock pins numpy, scipy and scikit-learn releases whose wheels exist for these two versions.
SUPPORTED_PYTHON='(3, 12) <= sys.version_info[:2] <= (3, 13)'

# real_python COMMAND: the interpreter behind a command (a pyenv shim, a link) if it starts and is supported.
real_python() {
    "$1" -c "import sys; print(sys.executable) if $SUPPORTED_PYTHON else sys.exit(1)" 2>/dev/null </dev/null
}

# can_make_venv PYTHON: whether its venv module works (Debian ships it apart, as python3-venv).
can_make_venv() {
    "$1" -c 'import venv, ensurepip' >/dev/null 2>&1 </dev/null
}

# find_python: path of a supported Python, or exit code 1 with nothing printed.
find_python() {
    local candidate found uv_command
    if [ -n "${GUIDANCE_PYTHON:-}" ]; then
        real_python "$GUIDANCE_PYTHON" && return 0
        say "GUIDANCE_PYTHON=$GUIDANCE_PYTHON does not start or is not Python 3.12 or 3.13"
        return 1
    fi
    for candidate in python3.12 python3.13 python3 python; do
        command -v "$candidate" >/dev/null 2>&1 || continue
        real_python "$candidate" && return 0
    done
    for candidate in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[23].*/bin/python; do
        [ -x "$candidate" ] || continue
        real_python "$candidate" && return 0
    done
    uv_command=$(find_uv) || return 1
    found=$("$uv_command" python find '>=3.12,<3.14' 2>/dev/null </dev/null) || return 1
    real_python "$found"
}

# find_any_python: any Python 3.8+ that can make a virtual environment; good enough to hold uv.
find_any_python() {
    local candidate
    for candidate in "${GUIDANCE_PYTHON:-}" python3 python3.12 python3.13 python3.11 python \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.*/bin/python; do
        [ -n "$candidate" ] || continue
        command -v "$candidate" >/dev/null 2>&1 || continue
        "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 8))' >/dev/null 2>&1 </dev/null || continue
        can_make_venv "$candidate" || continue
        printf '%s\n' "$candidate"
        return 0
    done
    return 1
}

# --- uv ---------------------------------------------------------------------------------------------------------------

# find_uv: a working uv, on PATH or in this project's tools folder.
find_uv() {
    local candidate
    for candidate in uv "${TOOLS_DIR:?}/uv/bin/uv"; do
        if command -v "$candidate" >/dev/null 2>&1 && "$candidate" --version >/dev/null 2>&1; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}

# install_uv: put uv into a virtual environment of its own and print its path.  Nothing outside the project changes.
install_uv() {
    local host folder="${TOOLS_DIR:?}/uv"
    if ! host=$(find_any_python); then
        install_packages python3-venv || return "$?"
        host=$(find_any_python) || {
            say "no Python with a working venv module was found, and uv is not installed"
            return "$EXIT_MISSING"
        }
    fi
    say "installing uv (the package installer) into $folder"
    rm -rf "$folder"
    mkdir -p "$TOOLS_DIR"
    if ! "$host" -m venv "$folder" >&2 || ! "$folder/bin/python" -m pip install --quiet 'uv>=0.7,<1' >&2; then
        rm -rf "$folder"
        say "uv could not be installed; check the network, or install uv yourself and run this command again"
        return 1
    fi
    printf '%s\n' "$folder/bin/uv"
}

# --- system packages --------------------------------------------------------------------------------------------------

has_git_lfs() { git lfs version >/dev/null 2>&1; }
# No pipes: under pipefail a reader that leaves early would make the check fail now and then.
has_eigen() { g++ -E -x c++ - >/dev/null 2>&1 <<<'#include <eigen3/Eigen/Core>'; }

has_chromium() { command -v chromium >/dev/null 2>&1; }

# missing_packages [eigen] [chromium]: Debian names of the system packages that are not there, on one line.
missing_packages() {
    local missing=()
    command -v git >/dev/null 2>&1 || missing+=(git)
    has_git_lfs || missing+=(git-lfs)
    command -v g++ >/dev/null 2>&1 || missing+=(g++)
    command -v bwrap >/dev/null 2>&1 || missing+=(bubblewrap)
    local extra
    for extra in "$@"; do
        case "$extra" in
            eigen) has_eigen || missing+=(libeigen3-dev) ;;
            chromium) has_chromium || missing+=(chromium) ;;
        esac
    done
    printf '%s\n' "${missing[*]:-}"
}

# package_command PACKAGES...: the one command that installs them here (Debian names in, this system's names out).
package_command() {
    local names=" $* "
    if command -v apt-get >/dev/null 2>&1; then
        printf 'sudo apt-get update && sudo apt-get install -y%s\n' "${names% }"
    elif command -v dnf >/dev/null 2>&1; then
        names=${names/ g++ / gcc-c++ }
        names=${names/ libeigen3-dev / eigen3-devel }
        printf 'sudo dnf install -y%s\n' "${names% }"
    elif command -v pacman >/dev/null 2>&1; then
        names=${names/ g++ / gcc }
        names=${names/ libeigen3-dev / eigen }
        printf 'sudo pacman -S --needed%s\n' "${names% }"
    else
        printf 'install with your package manager:%s\n' "${names% }"
    fi
}

is_root() { [ "$(id -u)" -eq 0 ]; }

# install_packages PACKAGES...: install with apt when root, else name the command and return EXIT_MISSING.
install_packages() {
    if is_root && command -v apt-get >/dev/null 2>&1; then
        say "installing system packages: $*"
        if apt-get update -qq >&2 </dev/null &&
            DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2 </dev/null; then
            return 0
        fi
        say "apt-get could not install: $*"
    else
        say "these system packages are missing: $*"
    fi
    say "install them with:  $(package_command "$@")"
    say "then run this command again"
    return "$EXIT_MISSING"
}

# ensure_system_tools [eigen] [chromium]: check each tool and install what is missing.
ensure_system_tools() {
    local missing
    missing=$(missing_packages "$@")
    [ -z "$missing" ] && return 0
    # shellcheck disable=SC2086  # a list of package names
    install_packages $missing || return "$?"
    missing=$(missing_packages "$@")
    [ -z "$missing" ] && return 0
    say "still missing after the installation: $missing"
    return "$EXIT_MISSING"
}

# --- files ------------------------------------------------------------------------------------------------------------

# without_torch LOCK: the lock file without torch and the libraries that only its CUDA build wants.
without_torch() {
    awk '
        /^[A-Za-z0-9]/ { keep = ($0 !~ /^(torch|triton|nvidia-[a-z0-9-]+|cuda-[a-z0-9-]+)==/) }
        /^[A-Za-z0-9]/ || /^[[:space:]]/ { if (keep) print; next }
        { print }
    ' "$1"
}

# locked_version LOCK NAME: the version that the lock pins for one package.
locked_version() {
    sed -n "/^$2==/{s/^$2==\([^ ;]*\).*/\1/p;q}" "$1"
}

# require_disk FOLDER MEGABYTES: refuse early, with numbers, when the file system is too full.
require_disk() {
    local free_mb
    free_mb=$(df -Pk "$1" 2>/dev/null | awk 'NR == 2 { print int($4 / 1024) }')
    [ -n "$free_mb" ] || return 0
    if [ "$free_mb" -lt "$2" ]; then
        say "$1 has $free_mb MB free; the installation needs about $2 MB more (6 GB in all: mostly PyTorch)."
        say "free some space, or set GUIDANCE_TORCH_INDEX to an index with CPU builds of PyTorch (about 2 GB in all)"
        return "$EXIT_MISSING"
    fi
}
