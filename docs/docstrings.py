"""What the reference changes in docstrings, which are written for ``help()``, before it shows them."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|mod):`~?([\w.]+)`")


class Docstrings(griffe.Extension):
    """Names lose their Sphinx roles, and an example is recognised as one."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.docstring is not None:
            text = ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
