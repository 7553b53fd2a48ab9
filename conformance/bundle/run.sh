#!/bin/sh
# Runs the suite on @NAME@ from the files next to this script: no network is used. Arguments go to pytest, such as -k scaling
# or --tests quick. PYTHON is the interpreter (@PYTHON@), MODES the modes, CONFORMANCE_DEVICE the device. Records are in
# records/, next to this script. Exit status as of `conformance run`: 0, 1, or 2 with one line.
set -u
unset PYTHONPATH PYTHONHOME
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd) || exit 2
refuse() {
    echo "run.sh: $1" >&2
    exit 2
}
python=${PYTHON:-@PYTHON@}
command -v "$python" >/dev/null || refuse "$python is not there; set PYTHON to a Python @VERSION@"
"$python" -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != "@VERSION@")' ||
    refuse "$python is no Python @VERSION@; set PYTHON to one"
cd "$here" || exit 2
sha256sum --check --quiet --strict SHA256SUMS >&2 || refuse "a file is damaged; unpack the bundle again"
if [ ! -f venv/ready ]; then
    rm -rf venv
    "$python" -m venv venv >&2 || refuse "no virtual environment can be made; install Python's venv and ensurepip"
    PIP_CONFIG_FILE=/dev/null PIP_DISABLE_PIP_VERSION_CHECK=1 venv/bin/python -m pip install --quiet --no-index \
        --find-links wheels --requirement requirements.txt >&2 || refuse "the wheels cannot be installed"
    : > venv/ready
fi
export PYTHONHASHSEED=0
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" OPENBLAS_NUM_THREADS="${OPENBLAS_NUM_THREADS:-1}" MKL_NUM_THREADS="${MKL_NUM_THREADS:-1}"
export XLA_FLAGS="${XLA_FLAGS:---xla_cpu_multi_thread_eigen=false}" TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}"
mkdir -p records && cd suite || exit 2
status=0
for mode in ${MODES:-@MODES@}; do
    words="--modes $mode"
    [ "$mode" = default ] && words=
    # shellcheck disable=SC2086
    ../venv/bin/python -m conformance run $words @NAME@ --record="$here/records/@STEM@-$mode.json" "$@"
    ended=$?
    [ "$ended" -gt "$status" ] && status=$ended
done
exit "$status"
