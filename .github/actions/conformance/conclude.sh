#!/usr/bin/env bash
# Fails the job if the run could not be made; or, as FAIL_ON says, if a test needs action (failures), if the comparison
# found something worse or could not be made (worse), if numbers drifted as well (drift), or not at all (never).
set -euo pipefail

[[ $RUN != 2 ]] || { echo "::error::conformance: the run could not be made"; exit 2; }
case $FAIL_ON in
  failures) exit "$RUN" ;;
  worse | drift) exit "$COMPARISON" ;;
  never) exit 0 ;;
  *) echo "::error::conformance: fail-on is failures, worse, drift or never"; exit 2 ;;
esac
