#!/usr/bin/env bash
# Keeps the comment NAME on pull request PULL up to date with OUT/comparison.md. Where that is not allowed, as for pull
# requests from forks, it says so and ends well: the job's summary has the comparison.
set -euo pipefail

cd "$SUITE"
if ! told=$("$PYTHON" -m conformance comment "$OUT/comparison.md" --pull "$PULL" --name "$NAME" 2>&1); then
  echo "::notice::$told; the comparison stands in the job's summary"
else
  echo "$told"
fi
