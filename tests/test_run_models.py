"""`llmopt run` with a model behind HTTP: keys, caps, missing packages."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from provider_contract import no_proxies, server
from wire import THOUSAND, Say, openai_body, openai_error

from llmopt.cli import main

pytest.importorskip("matplotlib")

__all__ = ["no_proxies", "server"]

KEY = "planted-KEY-0123456789abcdef"
QUICK = ["--prompt", "props", "--methods", "llm", "--iterations", "6", "--episodes", "1"]
QUICK += ["--warmup", "3", "--heldout", "2", "--no-gif"]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class Points:
    """A new point each time, and the answers that come before it."""

    def __init__(self, *first):
        self.first = list(first)
        self.count = 0

    def __call__(self, body):
        if self.first:
            return self.first.pop(0)
        self.count += 1
        values = ", ".join(f"params[{i}]: {self.count / 10}" for i in range(3))
        return Say(openai_body(f"{values}\nNext.", usage=THOUSAND))


def run(server, *options):
    model = f"openai+{server.url}/v1:m"
    return main(["run", "mountaincar", "--model", model, "--out", "r", *QUICK, *options])


def requests_of(folder="r"):
    return json.loads((Path(folder) / "summary.json").read_text())[0]["requests"]


def test_the_key_is_in_nothing_that_a_run_writes(server, monkeypatch, capfd):
    monkeypatch.setenv("LLMOPT_API_KEY", KEY)
    # The model, the server and a refused parameter all echo the key on the way.
    server.play(
        Points(
            Say(openai_error(f"not supported for the key {KEY}", param="seed"), 400),
            Say(openai_error(f"Bearer {KEY} is busy"), 503, {"Retry-After": "0"}),
        )
    )
    assert run(server) == 0
    server.play(Say(openai_error(f"Incorrect API key provided: {KEY}"), 401))
    assert run(server, "--iterations", "9", "--out", "wrong") == 2
    out, err = capfd.readouterr()
    assert "refused the API key" in err
    written = {p: p.read_bytes() for p in Path().rglob("*") if p.is_file()}
    assert {p.name for p in written} >= {"config.json", "optimizer.jsonl", "trials.jsonl"}
    assert any(server.url.encode() in data for data in written.values())
    for place, text in {"stdout": out.encode(), "stderr": err.encode(), **written}.items():
        assert KEY.encode() not in text, place
        assert KEY[8:].encode() not in text, place


@pytest.mark.parametrize(
    ("option", "value", "sent"),
    # Each answer takes 1,007 tokens, and the check is before the request.
    [("--max-requests", "3", 3), ("--max-tokens", "3000", 3)],
)
def test_caps_stop_a_run_that_can_go_on(server, capsys, option, value, sent):
    server.play(Points())
    assert run(server, option, value) == 0
    assert len(server.seen) == requests_of() == sent
    told = capsys.readouterr()
    assert told.err.splitlines()[-1].startswith("llmopt: ")
    assert "--resume" in told.err.splitlines()[-1]
    for text in (told.err.splitlines()[-1], told.out, Path("r/summary.txt").read_text()):
        assert option[2:].replace("-", "_") in text
    assert len(Path("r/overall_log.txt").read_text().splitlines()) == 1 + sent
    # The same cap stops it again, a higher one lets it go on; no answer is paid for twice.
    again = ["run", "mountaincar", "--resume", "--out", "r", "--model", f"openai+{server.url}/v1:m"]
    assert main(again) == 0
    assert len(server.seen) == requests_of() == sent
    # An address that only the folder names is not asked: the folder may be somebody else's.
    assert main([*again[:-2], option, "99999"]) == 2
    assert "--model openai+http" in capsys.readouterr().err
    assert len(server.seen) == sent
    # Both commands that were printed raise the cap.
    more = next(line for line in told.out.splitlines() if "llmopt run --resume" in line)
    assert f"{option} 6" in more
    said = told.err.splitlines()[-1].partition("resume with: llmopt ")[2]
    assert main(shlex.split(said)) == 0
    assert len(server.seen) == requests_of() == 6
