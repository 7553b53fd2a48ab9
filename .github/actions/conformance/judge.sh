#!/usr/bin/env bash
# Judges FRAMEWORK at VERSION (empty: the pinned one) on DEVICE in MODES (empty: its own) through tox, by TESTS (empty:
# core), and gathers what this run wrote in OUT: records/, junit*.xml. Writes `run=STATUS` to GITHUB_OUTPUT: 0, 1 as `conformance run`; 2, there
# is no record. With RECORDS set it runs nothing and gathers those records.
set -euo pipefail

refuse() {
  echo "::error::conformance: $1"
  exit 2
}

mkdir -p "$OUT/records"
status=0
if [[ -n $RECORDS ]]; then
  [[ -e $RECORDS ]] || refuse "the records are not there"
  cp -R "$RECORDS"/. "$OUT/records/"
else
  [[ $FRAMEWORK =~ ^[a-z][a-z0-9]*$ ]] || refuse "framework is one of tox's environments, such as torch"
  [[ $VERSION =~ ^[0-9A-Za-z.+!-]*$ ]] || refuse "version is one such as 2.14.0"
  [[ $DEVICE =~ ^[a-z]+$ ]] || refuse "device is auto, cpu or cuda"
  [[ $MODES =~ ^[a-z,-]*$ ]] || refuse "modes are names with commas between them"
  [[ $TESTS =~ ^(quick|core|all)?$ ]] || refuse "tests is quick, core or all"
  cd "$SUITE"
  export CONFORMANCE_DEVICE=$DEVICE
  [[ -z $MODES ]] || export CONFORMANCE_MODES=$MODES
  [[ -z $TESTS ]] || export CONFORMANCE_TESTS=$TESTS
  if [[ -n $VERSION ]]; then
    variable=$(tr '[:lower:]' '[:upper:]' <<< "$FRAMEWORK")_VERSION
    export "$variable=$VERSION"
  fi
  touch "$OUT/.begun"
  token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' ')
  echo "::stop-commands::$token"
  python -m tox run -e "$FRAMEWORK" -- --junitxml="$OUT/junit.xml" || status=$?
  echo "::$token::"
  if [[ -d results/records ]]; then
    find results/records -maxdepth 1 -name '[!.]*.json*' -newer "$OUT/.begun" -exec cp {} "$OUT/records/" \;
  fi
  rm -f "$OUT/.begun"
fi
[[ $status == [01] && -n $(ls "$OUT/records") ]] || status=2
echo "run=$status" >> "$GITHUB_OUTPUT"
