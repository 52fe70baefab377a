/** Stations with a gauge of their own. */
export const stations = ["north-pier", "lighthouse", "old-harbour"] as const;
