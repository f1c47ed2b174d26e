"""Fetches one file over http(s): streamed, resumed, checked."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from ..errors import UserError
from ..files import WriteError, writing

Progress = Callable[[str, int, "int | None"], None]
"""Called with what is being done, how much of it is done, and how much there is (None where unknown)."""


class FetchError(UserError):
    """A source could not be reached, or did not deliver what was expected; another source may."""


def fetch(
    url: str,
    target: Path,
    md5: str,
    timeout: float = 15.0,
    attempts: int = 3,
    progress: Progress | None = None,
) -> None:
    """Downloads `url` to `target`, which appears only when complete and of that MD5.

    The bytes so far are kept in `target`.partial. A later call asks the server for the rest; where the server
    sends the whole file instead, or the joined file has the wrong checksum, it starts afresh.

    Args:
        url: http or https.
        target: where the file goes.
        md5: that it must have.
        timeout: seconds without an answer.
        attempts: how often a transfer may break off.
        progress: told what is done.
    """
    partial = target.with_name(target.name + ".partial")
    resumed = _size(partial) > 0
    for _ in range(attempts):
        try:
            complete = _stream(url, partial, timeout, progress)
        except WriteError:
            partial.unlink(missing_ok=True)
            raise
        if complete:
            break
    else:
        raise FetchError(
            f"{url} broke off after {_size(partial):,} bytes; run the same command again to fetch the rest"
        )
    found = _md5(partial)
    if found == md5:
        with writing(partial):
            os.replace(partial, target)
        return
    partial.unlink()
    if resumed:
        return fetch(url, target, md5, timeout, attempts, progress)
    raise FetchError(f"{url} delivered a file with MD5 {found} instead of {md5}")


def _stream(url: str, partial: Path, timeout: float, progress: Progress | None) -> bool:
    """Appends what is still missing to `partial`; False when the transfer broke off before its end."""
    have = _size(partial)
    headers = {"User-Agent": "gibbsprune"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and have:  # nothing lies beyond what is there: the checksum decides
            return True
        raise FetchError(f"{url} answered {error.code} ({error.reason})") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise FetchError(f"{url} could not be reached ({reason})") from None
    with response:
        if response.status == 206 and not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            partial.unlink(missing_ok=True)
            return False
        if response.status != 206:
            have = 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        with writing(partial), open(partial, "ab" if have else "wb") as file:
            while True:
                try:
                    block = response.read1(2**18)
                except (OSError, http.client.HTTPException):
                    return False
                if not block:
                    return total is None or have >= total
                file.write(block)
                have += len(block)
                if progress:
                    progress(f"fetching {partial.stem}", have, total)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _md5(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
