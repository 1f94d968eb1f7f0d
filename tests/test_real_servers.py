"""Whole searches through servers that nobody here wrote, with the embedded model behind them.

llmopt's own work is what is tested: that each server's streams, usage, schemas and errors are
understood. The model is too small for its points to be any good.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request

import pytest
from provider_contract import no_proxies

from llmopt.cli import main
from llmopt.client.model_facts import model_facts
from llmopt.client.model_string import get_client

__all__ = ["no_proxies"]

pytestmark = pytest.mark.embedded
KEY = "real-server-key-0123456789"
# The small model may ramble on in its reasons.
SHORT = 'structured=true&reasoning_tokens=0&extra_body={"max_tokens": 200}'
LITELLM = os.environ.get("LLMOPT_TEST_LITELLM") or shutil.which("litellm")


@pytest.fixture(scope="module")
def llamacpp(embedded_client):
    """llama.cpp's own server, as the package xllamacpp has it."""
    embedded_client.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llmopt.client.local.local.secrets.token_hex", lambda size: KEY)
        address = embedded_client._loaded().listening_address
    yield f"{address}/v1"
    embedded_client.close()


@pytest.fixture(scope="module")
def litellm(llamacpp, tmp_path_factory):
    """The LiteLLM proxy in front of it."""
    if LITELLM is None:
        pytest.skip("no `litellm` on the path, and LLMOPT_TEST_LITELLM does not name one")
    folder = tmp_path_factory.mktemp("litellm")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "model_list": [
            {
                "model_name": "smollm2",
                "litellm_params": {"model": "openai/smollm2", "api_base": llamacpp, "api_key": KEY},
            }
        ],
        "general_settings": {"master_key": "sk-" + KEY},
    }
    (folder / "config.yaml").write_text(json.dumps(settings))
    log = (folder / "log").open("w")
    keep = ("PATH", "HOME", "LANG", "NO_PROXY")
    command = [LITELLM, "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
    proxy = subprocess.Popen(
        [*command, "--telemetry", "False"],
        cwd=folder,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={k: os.environ[k] for k in keep if k in os.environ},
    )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            if proxy.poll() is not None:
                pytest.fail("the proxy ended: " + (folder / "log").read_text()[-2000:])
            try:
                urllib.request.urlopen(f"{url}/health/liveliness", timeout=5).close()
                break
            except OSError:
                time.sleep(0.5)
        yield f"{url}/v1"
    finally:
        proxy.terminate()
        proxy.wait(60)


@pytest.fixture(params=["llamacpp", "litellm"])
def address(request, no_proxies, monkeypatch, tmp_path):
    """The model string of each server, and its key in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LLMOPT_API_KEY", KEY if request.param == "llamacpp" else "sk-" + KEY)
    return f"openai+{request.getfixturevalue(request.param)}:smollm2"


def test_check(address, capsys):
    given = [part for option in SHORT.split("&") for part in ("--option", option)]
    assert main(["check", address, "--prompt", "opro", *given]) == 0
    shown = capsys.readouterr().out
    assert "as JSON by a schema" in shown
    assert "x, y = " in shown


def test_a_study(address):
    optuna = pytest.importorskip("optuna")
    from llmopt.adapters.optuna import LLMSampler

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = LLMSampler(
        model=f"{address}?{SHORT}", prompt="opro", n_startup_trials=2, seed=1, attempts=1
    )
    study = optuna.create_study(sampler=sampler)
    study.optimize(lambda trial: trial.suggest_float("x", -5, 5) ** 2, n_trials=3)
    assert len(study.trials) == 3
    assert sampler.usage.requests >= 1
    assert sampler.usage.prompt_tokens > 100 * sampler.usage.requests
    assert sampler.usage.failed_requests == 0
    # No schema was refused on the way.
    assert model_facts(sampler.client).structured


def test_its_errors(address, monkeypatch):
    from llmopt import ClientError
    from llmopt.client import complete_with_retries
    from llmopt.client.base import Message, Request

    long = Request((Message("user", "1, 2, 3, " * 20_000),), max_tokens=8)
    with pytest.raises(ClientError) as caught:
        complete_with_retries(get_client(address), long)
    assert not caught.value.retryable
    monkeypatch.setenv("LLMOPT_API_KEY", "sk-wrong")
    with pytest.raises(ClientError) as caught:
        get_client(address).complete(Request((Message("user", "hi"),), max_tokens=2))
    assert not caught.value.retryable
