"""The demo's work on files: what it reads, and that it changes nothing but headers."""

from pathlib import Path

import pytest

from examples.licence_headers import checking, headers
from examples.licence_headers.clerk import chosen_in, directories_of
from examples.licence_headers.headers import Header
from examples.licence_headers.planner import task_for


@pytest.mark.parametrize(
    ("text", "suffix", "header"),
    [
        ("// Copyright (c) 2021-2023 Harbour Labs\n\nx\n", ".ts", Header("2021-2023", "Harbour Labs", None)),
        ("# Copyright 2022 Jo F.\n# SPDX-License-Identifier: MIT\n", ".py", Header("2022", "Jo F", "MIT")),
        ("#!/bin/sh\n# Licensed under the MIT licence.\n", ".sh", Header(None, None, "MIT")),
        ("/* SPDX-License-Identifier: Apache-2.0 */\na {}\n", ".css", Header(None, None, "Apache-2.0")),
        ("-- Copyright © 2020, 2022 A & B\n", ".sql", Header("2020, 2022", "A & B", None)),
        ("let copyright = 1;\n// SPDX-License-Identifier: MIT\n", ".js", Header()),
        ("", ".js", Header()),
    ],
)
def test_read(text: str, suffix: str, header: Header) -> None:
    assert headers.read(text, suffix) == header


@pytest.mark.parametrize(
    ("old", "suffix", "new"),
    [
        ("x = 1\n", ".py", "# Copyright (c) A\n# SPDX-License-Identifier: MIT\n\nx = 1\n"),
        ("#!/bin/sh\nx\n", ".sh", "#!/bin/sh\n# Copyright (c) A\n# SPDX-License-Identifier: MIT\n\nx\n"),
        (
            "/* Licensed under the Apache-2.0 licence */\n\n\na {}",
            ".css",
            "/* Copyright (c) A */\n/* SPDX-License-Identifier: MIT */\n\na {}",
        ),
        ("", ".js", "// Copyright (c) A\n// SPDX-License-Identifier: MIT\n\n"),
    ],
)
def test_write_and_write_again(old: str, suffix: str, new: str) -> None:
    """A second time changes nothing."""
    header = Header(None, "A", "MIT")

    assert headers.write(old, suffix, header) == new
    assert headers.write(new, suffix, header) == new
    assert headers.body(new, suffix) == headers.body(old, suffix)


def test_the_task_names_its_directories() -> None:
    assert directories_of(task_for(["core", "web"])) == ["core", "web"]
    with pytest.raises(ValueError, match="Directories"):
        directories_of("do it")


@pytest.mark.parametrize(
    ("said", "means"),
    [("mit", "MIT"), ("Take MIT, please.", "MIT"), ("MIT or Apache-2.0", None), ("neither", None)],
)
def test_free_words_mean_an_option_only_where_that_is_clear(said: str, means: str | None) -> None:
    assert chosen_in(said, ["MIT", "Apache-2.0"]) == means


def test_the_check_sees_what_went_wrong() -> None:
    """One file under another licence, one of somebody else's touched, one changed below its header."""
    ours = "# Copyright (c) 2020 A\n# SPDX-License-Identifier: MIT\n\nx\n"
    theirs = "# Copyright (c) 2019 B\n# SPDX-License-Identifier: ISC\n\ny\n"
    a, b, c, d = Path("a.py"), Path("b.py"), Path("c.py"), Path("d.py")
    before = {a: ours, b: ours, c: theirs, d: ours}
    after = {
        a: ours,
        b: ours.replace("MIT", "ISC"),
        c: theirs.replace("ISC", "MIT"),
        d: ours.replace("x", "y"),
    }

    assert checking.wrong_files(before, before, "MIT") == []
    assert checking.wrong_files(before, after, "MIT") == [
        "b.py stands under ISC, not MIT",
        "c.py is B's and was changed",
        "d.py was changed below its header",
    ]
