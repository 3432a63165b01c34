"""The only place that asks the Hugging Face hub, and only for a configuration: weights come from folders.

The local cache is asked first, so a model that was downloaded once can be scanned offline.
"""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies

from exportdoctor.core.errors import UsageError
from exportdoctor.core.failure.messages import first_line

_SECONDS_TO_ANSWER = 5


def hub_config(hub_id: str) -> Path:
    """The path of the model's config.json in the local cache, after a download where needed and possible."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError as error:
        raise UsageError(f"A hub id ({hub_id}) needs huggingface_hub", hint="Install transformers") from error
    cached = try_to_load_from_cache(hub_id, "config.json")
    if isinstance(cached, str):
        return Path(cached)
    try:
        return _download(hub_id)
    except Exception as error:
        line = first_line(error) or type(error).__name__
        raise UsageError(
            f"{hub_id!r} is no folder here, is not in the local hub cache, and the hub did not give it: {line}",
            hint=f"Download it first (hf download {hub_id} config.json), or give a folder with config.json",
        ) from error


def _download(hub_id: str) -> Path:
    from huggingface_hub import constants, hf_hub_download

    _check_reachable(urlsplit(constants.ENDPOINT))
    return Path(hf_hub_download(hub_id, "config.json", etag_timeout=_SECONDS_TO_ANSWER))


def _check_reachable(endpoint: SplitResult) -> None:
    """Raise `OSError` at once where there is no way to the hub: its own client tries for half a minute."""
    if getproxies():
        return
    address = (endpoint.hostname or "", endpoint.port or 443)
    try:
        socket.create_connection(address, timeout=_SECONDS_TO_ANSWER).close()
    except OSError as error:
        raise OSError(f"{endpoint.hostname} cannot be reached from here") from error
