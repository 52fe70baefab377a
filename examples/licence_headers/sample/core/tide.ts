// Copyright (c) 2021-2023 Harbour Labs
// SPDX-License-Identifier: Apache-2.0

/** Height of the tide in metres, from the two constituents that matter in this bay. */
export function heightAt(hours: number): number {
  const moon = 1.42 * Math.cos((2 * Math.PI * hours) / 12.4206);
  const sun = 0.48 * Math.cos((2 * Math.PI * hours) / 12.0);
  return moon + sun;
}
