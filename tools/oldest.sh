#!/usr/bin/env bash
# The unit tests with the oldest numpy, fsspec, zstandard, torchdata and helpers that
# pyproject.toml admits, in a venv of its own. torch is the one of constraints.txt: older releases
# have CPU builds only on an index of torch's own.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-oldest
oldest=$(mktemp)
trap 'rm -f "$oldest"' EXIT
# The lower end of every range of [project] dependencies but torch's.
"${PYTHON:-python3}" - >"$oldest" <<'PY'
import tomllib
for requirement in tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]:
    name, _, least = requirement.partition(">=")
    if name != "torch":
        print(f"{name}=={least}")
PY
echo "the oldest admitted:" $(cat "$oldest")
"${PYTHON:-python3}" -m venv --clear "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check install --quiet "$@"; }
pip "$(grep '^torch==' constraints.txt)"
pip -r "$oldest" hypothesis pillow psutil 'pytest>=9' pytest-xdist simplejpeg webdataset
pip -r "$oldest" -e '.'
"$venv/bin/python" -m pytest -q -n 2 tests/order tests/format tests/reading tests/writing \
  tests/planning tests/dataset tests/loader tests/distributed "$@"
