#!/bin/bash
# The oracle's answer: the seed program, which is valid and easy to beat.
set -euo pipefail
mkdir -p /workspace
cp /solution/seed.py /workspace/solution.py
