#!/usr/bin/env bash
# One run: set-up, judge, executor and Reef, then the search as a Harbor trial.  Run it again to continue.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: ./run.sh [options]

Trains a small guidance policy on one task and prints the reward of the best program. Everything is set by environment:

  GUIDANCE_TASK          task to run (default polyomino_packing)
  GUIDANCE_STEPS         training steps in all; raise it and run again to continue (default: the config file's)
  GUIDANCE_STATE_DIR     where the run keeps its state (default work/<task>)
  GUIDANCE_PROFILE       local (default) or gpu
  GUIDANCE_EXECUTOR      offline (default), openai, local or openrouter
  GUIDANCE_CONFIG        another config file (default serve.local.yaml or serve.yaml)
  GUIDANCE_MODEL_PATH    directory of the guidance model (default work/models/<name>)
  GUIDANCE_JUDGE_URL, GUIDANCE_EXECUTOR_URL, GUIDANCE_REEF_PORT
                         addresses (default ports 8081, 8000, 8900)
  GUIDANCE_JUDGE_ARGS    further options of the judge, e.g. --workers 4
  GUIDANCE_REUSE_SERVICES=1
                         use services that run already instead of refusing their ports
  GUIDANCE_PYTHON, GUIDANCE_TORCH_INDEX
                         used by the set-up (see scripts/setup.sh --help)

  --max-evaluations N, --max-time SECONDS, --max-cost DOLLARS
                   stop before a step that would exceed this; the best program is graded, a higher limit continues
  --freeze-policy  a control run: the same search with a policy that no update changes (GUIDANCE_FREEZE_POLICY=1)
  --quiet          print warnings, errors and the result only (GUIDANCE_QUIET=1); `guidance-ttt status` shows the rest
  --setup-only     install everything, start nothing
  --help           this text

Exit codes: 0 done; 1 failed; 2 a wrong setting; 3 something is missing on this machine; 130 stopped with Ctrl-C.
TEXT
}

setup_only=false
while [ "$#" -gt 0 ]; do
    case "$1" in
        --setup-only) setup_only=true ;;
        --max-evaluations | --max-time | --max-cost)
            if [ "$#" -lt 2 ]; then
                printf 'error: %s needs a value\n\n' "$1" >&2
                usage >&2
                exit 2
            fi
            name=${1#--}
            name=${name//-/_}
            export "GUIDANCE_${name^^}=$2"
            shift
            ;;
        --freeze-policy) export GUIDANCE_FREEZE_POLICY=1 ;;
        --quiet) export GUIDANCE_QUIET=1 ;;
        -h | --help)
            usage
            exit 0
            ;;
        *)
            printf 'error: unknown option: %s\n\n' "$1" >&2
            usage >&2
            exit 2
            ;;
    esac
    shift
done

cd "$(dirname "${BASH_SOURCE[0]}")"
setup_options=()
if [ "${GUIDANCE_TASK:-}" = lasso_path ]; then
    setup_options+=(--eigen)
fi
scripts/setup.sh ${setup_options[@]+"${setup_options[@]}"}
if "$setup_only"; then
    exit 0
fi
exec .venv/bin/python -m guidance_ttt.launch
