#!/bin/bash
# The images that the container tests need, from what this machine has: the Dockerfile's base by mmdebstrap, NATS
# from the wheel that is in .venv, Redis from Debian; and the services' own, which is always built. Prints what each
# took; of the others those that are there stay.
set -euo pipefail
cd "$(dirname "$0")/.."
export DOCKER_BUILDKIT=0 # what Debian's engine has without further packages
base=upcall-test/python:3.11 nats=upcall-test/nats:local redis=upcall-test/redis:local upcall=upcall-test/upcall:local
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

have() { docker image inspect "$1" >/dev/null 2>&1; }
# Each may fail once: a registry that did not answer.
told() { local from=$SECONDS; "$@" || "$@" || return 1; echo "images: ${*: -1} ($((SECONDS - from)) s)"; }
quietly() { local log=$work/${*: -1}.log; mkdir -p "${log%/*}"; "$@" >"$log" 2>&1 || { cat "$log" >&2; return 1; }; }

build_nats() {
  mkdir -p "$work/nats"
  cp "$(.venv/bin/python -c 'from upcall_deploy import binaries; print(binaries.nats_server())')" "$work/nats/nats-server"
  chmod 755 "$work/nats/nats-server"
  cat >"$work/nats/Dockerfile" <<END
FROM $base
RUN apt-get -qq update && apt-get -qq install -y --no-install-recommends wget >/dev/null && rm -rf /var/lib/apt/lists/*
COPY nats-server /usr/local/bin/nats-server
ENTRYPOINT ["nats-server"]
END
  quietly docker build "$work/nats" --tag "$1"
}

build_redis() {
  quietly docker build - --tag "$1" <<END
FROM $base
RUN apt-get -qq update && apt-get -qq install -y --no-install-recommends redis-server >/dev/null && rm -rf /var/lib/apt/lists/*
RUN mkdir /data && chown redis:redis /data
WORKDIR /data
USER redis
CMD ["redis-server"]
END
}

# What deploy/Dockerfile.dockerignore lets through: only BuildKit reads that, and .venv is large.
build_upcall() {
  tar -c --exclude=__pycache__ LICENSE pyproject.toml requirements.lock contracts services deploy |
    quietly docker build - -f deploy/Dockerfile --build-arg "BASE_IMAGE=$base" --tag "$1"
}

have $base || told bash .ci/base-image.sh $base
builds=()
have $nats || { told build_nats $nats & builds+=($!); }
have $redis || { told build_redis $redis & builds+=($!); }
told build_upcall $upcall & builds+=($!)
for build in "${builds[@]}"; do wait "$build"; done
