#!/usr/bin/env bash
# Everything that must hold: style, types, tests.  Sets the project up first; other arguments go to pytest.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: ./test.sh [--fast | --soak] [pytest arguments...]

  --fast   leave out the tests that start a real service, model or trial
  --soak   also run the minutes of power cuts of the whole main job

Examples:
  ./test.sh                      everything but the soak
  ./test.sh --fast               a few minutes less
  ./test.sh tests/front -k port  a part
TEXT
}

pytest_options=(-q)
while [ "$#" -gt 0 ]; do
    case "$1" in
        --fast) pytest_options+=(-m "not slow") ;;
        --soak) pytest_options+=(-m "soak or not soak") ;;
        -h | --help)
            usage
            exit 0
            ;;
        *) break ;;
    esac
    shift
done

cd "$(dirname "${BASH_SOURCE[0]}")"
scripts/setup.sh --eigen  # the LASSO judge compiles against it
printf '== style\n'
.venv/bin/ruff check .
printf '== types\n'
.venv/bin/mypy
printf '== tests\n'
exec .venv/bin/python -m pytest "${pytest_options[@]}" "$@"
