"""Ids: the tokens that name sessions, runs, questions, periods, work and agents."""

import base64
import hashlib
import re
from typing import Annotated, Final

from pydantic import StringConstraints

TOKEN_PATTERN: Final = r"^[A-Za-z0-9_-]{1,64}$"
"""The grammar of an id or an agent's name; such a token is also one token of a NATS subject."""

Token = Annotated[str, StringConstraints(pattern=TOKEN_PATTERN)]
"""An id or an agent's name. A body in which only such fields are wrong is refused as `invalid_id`."""

OPERATOR: Final = "operator"
"""The caller that is a person or a tool of theirs; no session may have this id."""

_is_token = re.compile(r"[A-Za-z0-9_-]{1,64}").fullmatch
_PREFIX_MAX = 14
_DIGEST_CHARS = 26  # 130 bits in base32


def is_token(text: str) -> bool:
    """Say whether a text is an id by the grammar of the wire."""
    return _is_token(text) is not None


def derive_id(prefix: str, *parts: str) -> str:
    """Name something after what caused it: the same parts give the same id, always.

    Each part is hashed with its length before it, so that ("ab", "c") and ("a", "bc") differ. The result is a
    token of at most 40 characters. The prefix (at most 14 characters of a token) is for people only.
    """
    if prefix and (len(prefix) > _PREFIX_MAX or not is_token(prefix)):
        raise ValueError(f"a prefix has at most {_PREFIX_MAX} characters of a token: {prefix!r}")
    digest = hashlib.blake2b(digest_size=17)
    for part in parts:
        raw = part.encode()
        digest.update(len(raw).to_bytes(8, "big"))
        digest.update(raw)
    return prefix + base64.b32encode(digest.digest()).decode("ascii").lower()[:_DIGEST_CHARS]
