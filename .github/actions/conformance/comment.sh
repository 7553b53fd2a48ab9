#!/usr/bin/env bash
# Comments OUT/comparison.md, cut to what GitHub takes, on pull request PULL, in place of the token's last comment there.
# Where that is not allowed, as for pull requests from forks, it says so and ends well: the job's summary has the comparison.
set -euo pipefail

if ! told=$(head -c 60000 "$OUT/comparison.md" |
  gh pr comment "$PULL" --repo "$GITHUB_REPOSITORY" --edit-last --create-if-none --body-file - 2>&1); then
  echo "::notice::${told//$'\n'/ }; the comparison stands in the job's summary"
else
  echo "$told"
fi
