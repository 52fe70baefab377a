// Copyright (c) 2019 Jo Ferreira
// SPDX-License-Identifier: MIT

/** The point of the compass nearest to a bearing in degrees. */
export function point(bearing) {
  return ["N", "NE", "E", "SE", "S", "SW", "W", "NW"][Math.round(bearing / 45) % 8];
}
