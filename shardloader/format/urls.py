"""What of a URL may be shown, in a message, a log or a file?

Not what is before the host, which may hold a password, nor what follows the question mark, which
may be a signature that lets anybody read. Whatever shows a user's source goes through here.
"""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "***"

# In the part that names the host the last @ counts: passwords may hold one.
_SECRETS: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?:[^/?#\s]*@)?(?P<place>[^?\s]*)(?P<query>\?\S*)?"
)


def without_secrets(text: str) -> str:
    """The text with the user, password and query of each URL in it hidden.

    >>> without_secrets("s3://key:secret@host/a.tar?X-Signature=0123")
    's3://***@host/a.tar?***'
    >>> without_secrets("corpus/a?b@c.tar")
    'corpus/a?b@c.tar'
    """
    return _SECRETS.sub(_shown, text) if "://" in text else text


def _shown(match: re.Match[str]) -> str:
    scheme, place, query = match["scheme"], match["place"], match["query"]
    has_user = match.end("scheme") < match.start("place")
    return f"{scheme}{HIDDEN + '@' if has_user else ''}{place}{'?' + HIDDEN if query else ''}"
