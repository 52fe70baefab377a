// Copyright (c) 2021 Harbour Labs
// SPDX-License-Identifier: Apache-2.0

const SYNODIC_MONTH_DAYS = 29.530588;

/** Age of the moon in days, counted from a new moon. */
export function moonAge(daysSinceNewMoon: number): number {
  return daysSinceNewMoon % SYNODIC_MONTH_DAYS;
}
