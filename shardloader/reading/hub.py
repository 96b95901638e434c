"""How is a file of a repository on the Hugging Face Hub asked for?

`HfFileSystem` finds and lists files, and asks for more than is wanted of one: whether there is
such a repository, all of a file's folder for its size, 5 MiB behind each range. It tries again by
itself, and waits as long as a stalled connection does. Here a status is one HEAD and a range is one
GET, of the URL that the Hub gives for a file.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")
_PLACE: Final = re.compile(
    r"hf://(?:(?P<kind>model|dataset|space)s/)?(?P<repo>[^/@]+/[^/@]+)"
    r"(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?/(?P<path>.+)",
    re.DOTALL,
)


class HubFiles:
    """An HfFileSystem whose files are read by single requests. stall_s: as of Patience."""

    def __init__(self, files: Any, stall_s: float) -> None:
        self._files = files
        self._stall_s = stall_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def info(self, url: str) -> dict[str, Any]:
        """Size and etag. Raises FileNotFoundError and what huggingface_hub does."""
        from huggingface_hub import get_hf_file_metadata

        options = {"token": self._files.token, "timeout": self._stall_s}
        found = self._asked(url, lambda target: get_hf_file_metadata(target, **options))
        return {"size": found.size, "etag": found.etag}

    def cat_file(self, url: str, start: int | None = None, end: int | None = None) -> bytes:
        """All of a file, or bytes start..end-1 as far as there are any. Raises as `info` does."""
        utils = _utils()
        headers = utils.build_hf_headers(token=self._files.token)
        if start is not None and end is not None:
            if end <= start:
                return b""
            headers["Range"] = f"bytes={start}-{end - 1}"

        def ask(target: str) -> bytes:
            answer = utils.get_session().get(target, headers=headers, timeout=self._stall_s)
            utils.hf_raise_for_status(answer)
            return bytes(answer.content)

        return self._asked(url, ask)

    def _asked(self, url: str, ask: Callable[[str], _T]) -> _T:
        from huggingface_hub import hf_hub_url

        place = _PLACE.fullmatch(url)
        if place is None:
            raise ValueError("a file of the Hub is hf://datasets/OWNER/NAME[@REVISION]/PATH")
        revision = place["revision"]
        target = hf_hub_url(
            place["repo"],
            place["path"],
            repo_type=place["kind"] or "model",
            revision=None if revision is None else unquote(revision),
            endpoint=self._files.endpoint,
        )
        try:
            return ask(target)
        except _utils().EntryNotFoundError as error:
            raise FileNotFoundError(url) from error


def _utils() -> Any:
    """What the package has to offer besides; it does not say so to whoever checks types."""
    from huggingface_hub import utils

    return utils
