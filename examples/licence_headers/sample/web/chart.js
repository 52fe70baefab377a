// Copyright (c) 2023 Harbour Labs
// SPDX-License-Identifier: MIT

export function path(points) {
  return points.map(([x, y], i) => `${i ? "L" : "M"}${x},${y}`).join(" ");
}
