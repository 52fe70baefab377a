#!/bin/bash
# A Docker Engine for the container tests, where there is none yet: Debian's own packages, started by hand.
# Source it: `. .ci/engine.sh; engine_up; …; engine_down`. It needs root, and pulls nothing from a registry.

ENGINE_LOGS=${ENGINE_LOGS:-}
ENGINE_PID=

engine_answers() { timeout 10 docker info >/dev/null 2>&1; }

# engine_possible: whether one runs, or can be installed.
engine_possible() { engine_answers || { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }; }

engine_install() {
  engine_possible || {
    echo "engine: there is no container engine, and none can be installed here (root on Debian is needed)" >&2
    return 1
  }
  local apt="apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3"
  export DEBIAN_FRONTEND=noninteractive
  { $apt update && $apt install -y --no-install-recommends docker.io iptables ca-certificates; } \
    >"$ENGINE_LOGS/apt.log" 2>&1 || { tail -20 "$ENGINE_LOGS/apt.log" >&2; return 1; }
}

# engine_up: returns when an engine answers; the one that runs already, if there is one.
engine_up() {
  if engine_answers; then echo "engine: it runs already"; return 0; fi
  [ -n "$ENGINE_LOGS" ] || ENGINE_LOGS=$(mktemp -d)
  command -v dockerd >/dev/null || engine_install || return 1
  # A killed engine leaves its pid files, which stop the next one.
  pgrep -x dockerd >/dev/null || rm -f /var/run/docker.pid /var/run/docker/containerd/containerd.pid
  local driver
  for driver in overlay2 fuse-overlayfs vfs; do
    # Ports of containers are published on the loopback interface only.
    setsid dockerd --ip 127.0.0.1 --storage-driver "$driver" >"$ENGINE_LOGS/dockerd-$driver.log" 2>&1 &
    ENGINE_PID=$!
    local turn
    for turn in $(seq 1 120); do
      if engine_answers; then echo "engine: up ($driver)"; return 0; fi
      kill -0 "$ENGINE_PID" 2>/dev/null || break
      sleep 0.25
    done
    engine_down
    echo "engine: $driver does not work here: $(tail -1 "$ENGINE_LOGS/dockerd-$driver.log" | cut -c1-200)" >&2
  done
  return 1
}

# engine_down: ends the engine that this shell started, and no other.
engine_down() {
  [ -n "$ENGINE_PID" ] || return 0
  kill "$ENGINE_PID" 2>/dev/null || true
  timeout 60 tail --pid="$ENGINE_PID" -f /dev/null || kill -9 "$ENGINE_PID" 2>/dev/null || true
  wait "$ENGINE_PID" 2>/dev/null || true
  ENGINE_PID=
}
