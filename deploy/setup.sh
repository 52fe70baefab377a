#!/bin/sh
# Makes .venv with exactly the locked packages and the packages of this repository. `make` runs it before
# every target: when nothing it depends on has changed, it ends after some milliseconds.
set -eu
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# The folder is part of it: a virtual environment can't be moved.
wanted=$({ pwd; cat requirements-dev.lock pyproject.toml contracts/pyproject.toml client/pyproject.toml \
  deploy/setup.sh; } | sha256sum)
stamp=.venv/.setup-stamp
up_to_date() { [ -x .venv/bin/python ] && [ -f $stamp ] && [ "$(cat $stamp)" = "$wanted" ]; }
up_to_date && exit 0

# Of two that start at once, one installs and the other waits for it.
if command -v flock >/dev/null 2>&1; then
  exec 9<deploy/setup.sh
  flock 9
  up_to_date && exit 0
fi

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
  for name in ${PYTHON:-} python3.11 python3.12 python3.13 python3; do
    if command -v "$name" >/dev/null 2>&1 && is_new_enough "$name"; then echo "$name"; return; fi
  done
  return 1
}

can_apt() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; }

apt_install() {
  say "apt-get install $*"
  apt="apt-get -qq -o DPkg::Lock::Timeout=300"
  export DEBIAN_FRONTEND=noninteractive
  told=$(mktemp)
  $apt install -y --no-install-recommends "$@" >"$told" 2>&1 ||
    { $apt update && $apt install -y --no-install-recommends "$@"; } >"$told" 2>&1 ||
    { cat "$told" >&2; rm -f "$told"; return 1; }
  rm -f "$told"
}

make_venv() {
  python=$(find_python) || { can_apt && apt_install python3 python3-venv; python=$(find_python); } ||
    fail "Python 3.11 or newer is needed: install it, or name it with PYTHON=/path/to/python3"
  # A .venv that was moved or whose Python is gone is made anew.
  [ ! -e .venv ] || rm -rf .venv
  if ! "$python" -c 'import ensurepip' 2>/dev/null && can_apt; then
    version=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    apt_install python3-venv || apt_install "$version" || true
  fi
  if "$python" -c 'import ensurepip' 2>/dev/null; then
    "$python" -m venv .venv
  elif "$python" -m pip --version >/dev/null 2>&1; then
    # Debian's Python without its venv package, and nobody may install it: virtualenv brings its own pip.
    tools=$(mktemp -d)
    "$python" -m pip install --quiet --target "$tools" virtualenv
    PYTHONPATH=$tools "$python" -m virtualenv --quiet .venv
    rm -rf "$tools"
  else
    rm -rf .venv
    fail "$python can make no virtual environment: install python3-venv (Debian), or name another with PYTHON="
  fi
}

venv_works() { .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null &&
  .venv/bin/python -m pip --version >/dev/null 2>&1; }
venv_works || make_venv

say "installing the locked packages into .venv (once)"
pip=".venv/bin/python -m pip --quiet --disable-pip-version-check"
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# uv does in 2 to 5 seconds what takes pip 40; pip reaches it, since pip knows this machine's registry.
uv_lock=$(mktemp)
awk '/^[a-zA-Z0-9]/ { wanted = /^uv==/ } wanted' requirements-dev.lock >"$uv_lock"
$pip install --require-hashes --no-deps -r "$uv_lock" 2>"$log" || { cat "$log" >&2; fail "pip could not install uv"; }
rm -f "$uv_lock"
index=$($pip config get global.index-url 2>/dev/null || echo "${PIP_INDEX_URL:-}")
[ -z "$index" ] || export UV_DEFAULT_INDEX="$index"
uv=".venv/bin/python -m uv pip install --quiet --python .venv/bin/python"
$uv --require-hashes --no-deps -r requirements-dev.lock 2>"$log" ||
  $pip install --require-hashes --no-deps -r requirements-dev.lock 2>>"$log" ||
  { cat "$log" >&2; fail "the locked packages could not be installed (above: why)"; }
$uv --no-deps --no-build-isolation -e . -e contracts -e client 2>"$log" ||
  { cat "$log" >&2; fail "this repository's packages could not be installed (above: why)"; }

printf '%s\n' "$wanted" >$stamp
say "done"
