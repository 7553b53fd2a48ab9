#!/usr/bin/env bash
# Tells what the records in OUT/records say, and what differs from those in BASELINE (empty: the committed ones): writes
# summary.md, comparison.md and report.html to OUT, and both Markdown files to the job's summary. Writes
# `comparison=STATUS` to GITHUB_OUTPUT: 0, nothing is worse; 1, something is, or drifted with FAIL_ON=drift; 2, it cannot
# be judged.
set -euo pipefail

conformance() {
  (cd "$SUITE" && "$PYTHON" -m conformance "$@")
}

attempt() {
  conformance "$@" 2> "$OUT/problem.txt" || sed 's/^/::warning::/' "$OUT/problem.txt"
}

baseline=${BASELINE:-$SUITE/results/baselines}
[[ $baseline == /* ]] || baseline=$GITHUB_WORKSPACE/$baseline
records=$OUT/records

attempt table "$records" --format markdown --output "$OUT/summary.md"
attempt report "$records" --output "$OUT/report.html"
status=0
worst=worse
[[ $FAIL_ON != drift ]] || worst=drift
conformance compare --fail-on "$worst" --partial "$baseline" "$records" --format markdown --output "$OUT/comparison.md" \
  2> "$OUT/problem.txt" || status=$?
if [[ ! -s $OUT/comparison.md ]]; then
  status=2
  printf '**Conformance: the comparison cannot be judged.**\n\n' > "$OUT/comparison.md"
  sed 's/^/    /' "$OUT/problem.txt" >> "$OUT/comparison.md"
fi
rm -f "$OUT/problem.txt"
for part in summary comparison; do
  if [[ -s $OUT/$part.md ]]; then
    cat "$OUT/$part.md" >> "$GITHUB_STEP_SUMMARY"
    echo >> "$GITHUB_STEP_SUMMARY"
  fi
done
echo "comparison=$status" >> "$GITHUB_OUTPUT"
