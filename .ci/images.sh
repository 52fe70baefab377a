#!/bin/bash
# The images that the container tests need, from what this machine has: the Dockerfile's base by mmdebstrap, NATS
# from the wheel that is in .venv, Redis from Debian. Prints what each took; those that are there stay.
set -euo pipefail
cd "$(dirname "$0")/.."
export DOCKER_BUILDKIT=0 # what Debian's engine has without further packages
base=upcall-test/python:3.11 nats=upcall-test/nats:local redis=upcall-test/redis:local

have() { docker image inspect "$1" >/dev/null 2>&1; }
told() { local from=$SECONDS; "$@"; echo "images: ${*: -1} ($((SECONDS - from)) s)"; }
built() { docker build --quiet --tag "$2" "$1" >/dev/null 2>"$1/errors" || { cat "$1/errors" >&2; return 1; }; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

have $base || told bash .ci/base-image.sh $base

if ! have $nats; then
  cp "$(.venv/bin/python -c 'from upcall_deploy import binaries; print(binaries.nats_server())')" "$work/nats-server"
  cat >"$work/Dockerfile" <<EOF
FROM $base
RUN apt-get -qq update && apt-get -qq install -y --no-install-recommends wget >/dev/null && rm -rf /var/lib/apt/lists/*
COPY nats-server /usr/local/bin/nats-server
ENTRYPOINT ["nats-server"]
EOF
  chmod 755 "$work/nats-server"
  told built "$work" $nats
  rm "$work/nats-server"
fi

if ! have $redis; then
  cat >"$work/Dockerfile" <<EOF
FROM $base
RUN apt-get -qq update && apt-get -qq install -y --no-install-recommends redis-server >/dev/null && rm -rf /var/lib/apt/lists/*
RUN mkdir /data && chown redis:redis /data
WORKDIR /data
USER redis
CMD ["redis-server"]
EOF
  told built "$work" $redis
fi
