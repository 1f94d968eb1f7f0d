"""Whether a model can be asked at all: found out before anything is evaluated or paid for."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from llmopt.client.base import Client
from llmopt.errors import ClientError, MissingKeyError, ModelNotFoundError, RefusedKeyError
from llmopt.text import clean

_SHOWN_NAMES = 4
_SHOWN_CHARACTERS = 80
_PERMANENT = (MissingKeyError, RefusedKeyError, ModelNotFoundError, ImportError)
# A key that is refused, no credit, a model that this account may not ask, a wrong address.
_PERMANENT_STATUS = {301, 302, 303, 307, 308, 401, 402, 403, 404}


def check_ready(client: Client) -> None:
    """Find out whether a client's key, model, server, file and package are there, at no cost.

    A hosted model and a server are asked once per client object, for a list of models or for this
    one; a provider without such a list, and a client without this method, are taken as ready.

    Raises:
        MissingKeyError: There is no API key.
        RefusedKeyError: The provider does not take the API key.
        ModelNotFoundError: There is no such model.
        ClientError: The server cannot be reached, or the address or the recording cannot be used.
        PriceError: The file that ``LLMOPT_PRICES`` names cannot be read.
        ImportError: The client's package is not installed.
    """
    own = getattr(client, "check_ready", None)
    if callable(own):
        own()


def is_permanent(error: Exception) -> bool:
    """Whether no later request can mend an error: a search that goes on at random would hide it."""
    return isinstance(error, _PERMANENT) or (
        isinstance(error, ClientError) and error.status in _PERMANENT_STATUS
    )


def not_listed(name: str, model: str, listed: Collection[str], remedy: str = "") -> str:
    """Return the words for a model that is not in its server's list; `remedy` says what helps."""
    near = difflib.get_close_matches(model, listed, n=_SHOWN_NAMES, cutoff=0.4)
    shown = near + [n for n in sorted(listed) if n not in near][: _SHOWN_NAMES - len(near)]
    names = ", ".join(repr(clean(n[:_SHOWN_CHARACTERS])) for n in shown)
    more = f" and {len(listed) - len(shown)} more" if len(listed) > len(shown) else ""
    meant = f"did you mean {clean(near[0][:_SHOWN_CHARACTERS])!r}? " if near else ""
    return (
        f"{name} does not exist there: {meant}It has {names}{more}{'. ' if remedy else ''}{remedy}"
    )
