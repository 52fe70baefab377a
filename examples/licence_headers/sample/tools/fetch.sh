#!/bin/sh
# Copyright (c) 2022 Harbour Labs
# Licensed under the MIT licence.

set -eu
station=${1:?name a station}
curl --fail --silent "${GAUGES:?}/$station.csv"
