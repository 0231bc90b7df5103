"""Parse untrusted TOML, or refuse it with one error that names the file."""

from __future__ import annotations

import tomllib
from typing import Any

from kvspec.files.objects import Where


def parse_toml(data: bytes, where: Where) -> dict[str, Any]:
    """Parse a whole document. Raises FormatError for any other bytes.

    Callers limit bytes and lines: a key with thousands of dots takes quadratic time.
    """
    try:
        return tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise where.error("is not UTF-8") from None
    except ValueError as error:  # also an int of thousands of digits
        raise where.error(f"is not TOML: {error}") from None
    except RecursionError:
        raise where.error("is not TOML: nested too deeply") from None
