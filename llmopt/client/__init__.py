"""Clients: what stands between llmopt and a model.

`get_client` turns a model string into one. Importing this package loads no SDK.
"""

from llmopt.client.base import Client, Completion, Message, Reply, Request, client_name
from llmopt.client.command import CommandClient
from llmopt.client.http.retry import complete_with_retries
from llmopt.client.local.local import LocalClient
from llmopt.client.model_string import get_client
from llmopt.client.recordings import RecordClient, ReplayClient
from llmopt.client.scripted import ScriptedClient

__all__ = [
    "Client",
    "CommandClient",
    "Completion",
    "LocalClient",
    "Message",
    "RecordClient",
    "ReplayClient",
    "Reply",
    "Request",
    "ScriptedClient",
    "client_name",
    "complete_with_retries",
    "get_client",
]
