// Copyright (c) 2024 Harbour Labs
// SPDX-License-Identifier: Apache-2.0

export const knots = (metresPerSecond) => metresPerSecond * 1.943844;
