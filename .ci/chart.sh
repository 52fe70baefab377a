#!/bin/sh
# chart.sh: lints the Helm chart and checks what it renders, without a cluster. What that needs is installed once, beside
# .venv: it is large, and nothing else needs it.
set -eu
cd "$(dirname "$0")/.."
tools=${UPCALL_TOOLS:-$PWD/.upcall/tools}/chart
wanted=$({ pwd; cat deploy/k8s/check.lock; } | sha256sum)
[ -f "$tools/stamp" ] && [ "$(cat "$tools/stamp")" = "$wanted" ] || {
  rm -rf "$tools"
  .venv/bin/python -m venv "$tools"
  "$tools/bin/pip" install -qq --disable-pip-version-check --require-hashes --no-deps --only-binary :all: \
    -r deploy/k8s/check.lock
  printf '%s\n' "$wanted" >"$tools/stamp"
}
exec "$tools/bin/python" deploy/k8s/check.py
