#!/bin/sh
# upcall-run session|question_broker|reporter: a service. upcall-run provision [--replicas N …]: the streams.
# Anything else is a command of its own. `exec`, so that it is the service that a SIGTERM reaches.
set -eu
name=${1:?session, question_broker, reporter or provision}
case $name in
session | question_broker | reporter) exec python -m faststream run "upcall_$name.app:app" ;;
provision) shift && exec python -m upcall_deploy.provision "$@" ;;
*) exec "$@" ;;
esac
