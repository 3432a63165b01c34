"""Characters that control a terminal, or show a reader another text than there is."""

from __future__ import annotations

import re

# controls, what reorders or hides text, separators of lines, surrogates, and what XML does not have
UNSAFE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff"
    r"\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e0fff]"
)
