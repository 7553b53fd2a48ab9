#!/usr/bin/env bash
# Installs tox and the environment that draws the report. Writes to GITHUB_OUTPUT: suite, the checkout that this action
# stands in; folder, a new one for what will be written; name, of the artifact; python, of that environment.
set -euo pipefail

suite=$(cd "$GITHUB_ACTION_PATH/../../.." && pwd)
name=${NAME:-conformance-$FRAMEWORK-$VERSION-$DEVICE-$MODES}
name=$(tr -c '[:alnum:].\n' '-' <<< "$name" | head -n 1 | tr -s '-')
folder=$(mktemp -d "$RUNNER_TEMP/conformance.XXXXXX")
{
  echo "suite=$suite"
  echo "folder=$folder"
  echo "name=${name%-}"
  echo "python=$suite/.tox/report/bin/python"
} >> "$GITHUB_OUTPUT"
cd "$suite"
python -m pip install --quiet 'tox>=4.22,<5'
python -m tox run --notest -e report
