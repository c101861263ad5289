#!/bin/bash
# Rewards that something else left behind must never be read as ours, so they go first.
rm -rf /logs/verifier/reward.json /logs/verifier/reward.txt
# -I: neither the environment nor the working directory may change what the grader imports.
exec python3 -I /tests/grade.py
