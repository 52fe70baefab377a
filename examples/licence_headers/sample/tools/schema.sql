-- Copyright (c) 2022-2024 Harbour Labs
-- SPDX-License-Identifier: Apache-2.0

CREATE TABLE reading (
  station TEXT NOT NULL,
  taken_at TIMESTAMP NOT NULL,
  height_m NUMERIC(5, 2) NOT NULL,
  PRIMARY KEY (station, taken_at)
);
