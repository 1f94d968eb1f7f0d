"""Where requests go: the known servers, and the facts about one address."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Flag, auto
from urllib.parse import urlsplit

from llmopt.client.http.urls import check_url, is_local

ADDRESS = re.compile(r"(https?://(?:\[[^\]/]+\]|[^/:]+)(?::\d+)?)(/[^:]*)?:(?!\d+/)(.+)")
"""Pattern of the part after ``openai+`` in a model string: origin, path and model."""

CUSTOM_KEY_VARIABLE = "LLMOPT_API_KEY"
"""Environment variable of the key for an address that is not in `SERVERS`."""


class Documented(Flag):
    """Features that a server documents."""

    NOTHING = 0
    SCHEMAS = auto()  # all its models support JSON schemas
    COST = auto()  # answers state what was charged
    LISTS = auto()  # its list has all its models, or an unlisted one can be looked up by its name


NOTHING, SCHEMAS, LISTS = Documented.NOTHING, Documented.SCHEMAS, Documented.LISTS
BOTH = SCHEMAS | LISTS


@dataclass(frozen=True)
class Endpoint:
    """The address that requests go to, with the facts about it."""

    url: str  # base URL; empty if `trouble` explains why there is none
    variables: tuple[str, ...]  # environment variables of the key, in order
    needs_key: bool = True  # whether a key is required
    trouble: str = ""  # why there is no address; does not quote it
    lacking: bool = False  # whether a required variable is not set
    usual: bool = True  # whether it is the provider's own address
    fixed: bool = True  # whether the environment has no part in it; messages omit a fixed address
    official: bool = True  # whether this provider's settings in the environment may go there
    local: bool = False  # whether the model runs on the user's own machine and is free
    documents: Documented = SCHEMAS
    key_path: str = ""  # path that checks a key, if the list of models does not
    server: str = ""  # name of the known server whose prices apply


@dataclass(frozen=True)
class Server:
    """A known server.

    Names in braces in its `url` are environment variables: the first one that is set counts.
    """

    url: str
    variable: str  # environment variable of its key, or several with |; empty for none
    about: str  # description
    documents: Documented = NOTHING
    key_path: str = ""  # path that checks a key, if the list of models is public
    gateway: bool = False  # whether it forwards to models that may cost money
    elsewhere: str = ""  # environment variable of another address

    @property
    def variables(self) -> tuple[str, ...]:
        """Environment variables of its key, in order."""
        return tuple(self.variable.split("|"))

    @property
    def local(self) -> bool:
        """Whether it runs models on this machine."""
        return is_local(self.url) and not self.gateway

    @property
    def lacks(self) -> str:
        """Required environment variables that are not set."""
        names = [n for n in re.findall(r"{(.+?)}", self.url) if not self._part(n)]
        return " and ".join(n.replace("|", " or ") for n in names)

    @property
    def address(self) -> str:
        """Base URL; ``""`` if `lacks` names a variable."""
        if self.lacks:
            return ""
        return re.sub(r"{(.+?)}", lambda name: self._part(name[1]), self.url)

    def _part(self, names: str) -> str:
        """Return what a variable gives of the address; inside of it only one label of the host."""
        value = next(filter(None, map(os.environ.get, names.split("|"))), "")
        if self.url.startswith("{"):  # portals show the path behind it, too
            return re.sub(r"/openai(/.*)?$", "", value).rstrip("/")
        return value if LABEL.fullmatch(value) else ""

    def endpoint(self, own: str | None = None, others: Iterable[Server] = ()) -> Endpoint:
        """Return the endpoint; `own` is an address that the user has given, if any.

        This is the only rule about credentials. The key in a server's variable is sent only to an
        address that this server, or one of `others`, `owns`. Any other address, whether from an
        argument, a model string or an environment variable, gets only `CUSTOM_KEY_VARIABLE`.
        """
        if not own and self.lacks:
            needed = f"set the environment variable {self.lacks}"
            needed += "" if self.url.startswith("{") else " to a region, such as us-east-1"
            trouble = f"it needs an address and there is none: {needed}"
            return Endpoint("", self.variables, trouble=trouble, lacking=True)
        try:
            url = check_url(own or os.environ.get(self.elsewhere) or self.address)
        except ValueError as error:
            place = self.elsewhere or self.url.partition("}")[0].lstrip("{")
            trouble = f"the address in {place} is invalid: {error}"
            return Endpoint("", self.variables, trouble=trouble)
        usual = url == self.address
        owner = next((server for server in (self, *others) if server.owns(url)), None)
        return Endpoint(
            url,
            owner.variables if owner else (CUSTOM_KEY_VARIABLE,),
            needs_key=owner is not None,
            usual=usual,
            fixed=usual and "{" not in self.url,
            documents=self.documents if usual else self.documents & ~LISTS,
            official=owner is self,
        )

    def hosts(self, host: str) -> bool:
        """Whether a host is this server's own or one of its regions."""
        own, labels = _host(self.address), host.split(".")
        if not own or is_local(self.url) or labels[-2:] != own.split(".")[-2:]:
            return False
        # A region is one more label: us.api.openai.com, api.us-east-1.example.com. Any other
        # label may belong to a customer: BUCKET.storage.example.com.
        if host == own or ".".join(labels[1:]) == own:
            return True
        return bool(_REGION.fullmatch(labels[1])) and ".".join(labels[:1] + labels[2:]) == own

    def owns(self, url: str) -> bool:
        """Whether its key may go to an address: only to its own host, and only over https."""
        return bool(self.variable) and urlsplit(url).scheme == "https" and self.hosts(_host(url))


LABEL = re.compile(r"[A-Za-z0-9-]+")
"""Pattern of what a variable may put into the name of a host: anything else may end the name."""
_REGION = re.compile(r"[a-z]{2}|[a-z]+(-[a-z]+)+-?\d+")


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""


_BEDROCK = "https://bedrock-runtime.{AWS_REGION|AWS_DEFAULT_REGION}.amazonaws.com/openai/v1"
_AZURE = "a deployment on Azure, address in AZURE_OPENAI_ENDPOINT"
_ROUTER = "https://openrouter.ai/api/v1"
SERVERS: dict[str, Server] = {
    "openai": Server(
        "https://api.openai.com/v1", "OPENAI_API_KEY", "OpenAI", BOTH, elsewhere="OPENAI_BASE_URL"
    ),
    "openrouter": Server(
        _ROUTER, "OPENROUTER_API_KEY", "OpenRouter", Documented.COST | LISTS, key_path="/key"
    ),
    "deepseek": Server("https://api.deepseek.com", "DEEPSEEK_API_KEY", "DeepSeek", LISTS),
    "groq": Server("https://api.groq.com/openai/v1", "GROQ_API_KEY", "Groq", LISTS),
    "mistral": Server("https://api.mistral.ai/v1", "MISTRAL_API_KEY", "Mistral", BOTH),
    "together": Server("https://api.together.xyz/v1", "TOGETHER_API_KEY", "Together"),
    "xai": Server("https://api.x.ai/v1", "XAI_API_KEY", "xAI", SCHEMAS),
    "cerebras": Server("https://api.cerebras.ai/v1", "CEREBRAS_API_KEY", "Cerebras", BOTH),
    "fireworks": Server(
        "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY", "Fireworks", SCHEMAS
    ),
    "moonshot": Server("https://api.moonshot.ai/v1", "MOONSHOT_API_KEY", "Moonshot (Kimi)", LISTS),
    "zai": Server("https://api.z.ai/api/paas/v4", "ZAI_API_KEY", "Z.ai (GLM)"),
    "hf": Server("https://router.huggingface.co/v1", "HF_TOKEN", "Hugging Face's router"),
    "azure": Server("{AZURE_OPENAI_ENDPOINT}/openai/v1", "AZURE_OPENAI_API_KEY", _AZURE, SCHEMAS),
    "bedrock": Server(_BEDROCK, "AWS_BEARER_TOKEN_BEDROCK", "Amazon Bedrock"),
    "litellm": Server(
        "http://localhost:4000/v1", "", "a LiteLLM proxy on this machine", gateway=True
    ),
    "ollama": Server("http://localhost:11434/v1", "", "Ollama on this machine", BOTH),
    "vllm": Server("http://localhost:8000/v1", "", "vLLM on this machine", BOTH),
    "llamacpp": Server(
        "http://localhost:8080/v1", "", "llama.cpp's server on this machine", SCHEMAS
    ),
    "lmstudio": Server("http://localhost:1234/v1", "", "LM Studio on this machine", SCHEMAS),
}
"""Short names of servers: ``"ollama:llama3.2"`` means the model at this address."""


def openai_endpoint(server: str, base_url: str | None, model: str, local: bool | None) -> Endpoint:
    """Return the endpoint of a client of OpenAI's protocol."""
    named = SERVERS[server]
    place = named.endpoint(base_url, SERVERS.values())
    host = _host(place.url)
    owner = next((n for n, s in SERVERS.items() if s.hosts(host)), "")
    own = base_url is None and place.usual
    if local is None:
        # Ollama forwards models with "cloud" in their names to its own company's servers.
        local = base_url is None and named.local and "cloud" not in model
    documents = SERVERS[owner].documents if owner else NOTHING
    if base_url is None and server != "openai":  # OPENAI_BASE_URL may name another server
        documents |= named.documents
    # A local server that forwards models also answers to models that it does not list.
    lists = own and LISTS in named.documents and (local or not named.local)
    return replace(
        place,
        usual=own,
        fixed=own and place.fixed,
        local=local,
        documents=documents & ~LISTS | (LISTS if lists else NOTHING),
        key_path=named.key_path if own else "",
        server=owner,
    )
