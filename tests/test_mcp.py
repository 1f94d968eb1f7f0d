"""`llmopt mcp`: what it offers, and the official client over standard input and output."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from llmopt.errors import LLMOptError
from llmopt.service.mcp_tools import SearchFolder
from llmopt.service.search_file import open_file
from llmopt.util.caller import MCP, called_by

SPACE = {
    "x": {"type": "number", "minimum": -5, "maximum": 5},
    "k": {"type": "integer", "minimum": 0, "maximum": 9},
}
SEARCH = {"space": SPACE, "direction": "minimize", "seed": 0}
ANSWER = "Analysis: none.\nHypothesis: the middle.\nStart from: new\nProposal:\nx: {}, k: {}"


def create(searches, name, search):
    known = "space direction model description constraints start".split()
    options = {k: v for k, v in search.items() if k not in known}
    own = {k: v for k, v in search.items() if k in known}
    return searches.create_search(name, **own, options=options)


@pytest.fixture
def searches(tmp_path):
    return SearchFolder(tmp_path / "searches", wait=5.0)


class TestAgentIsTheModel:
    def begun(self, searches, **keys):
        create(searches, "mine", {**SEARCH, "model": "agent", "warmup": 1, **keys})
        point = searches.ask("mine")["points"][0]
        searches.tell("mine", point["params"], 3.0, feedback="too slow")
        return searches

    def test_it_gets_the_prompt_and_its_answer_is_checked(self, searches, caplog):
        self.begun(searches, description="a pump", constraints=["x <= k"])
        found = searches.ask("mine")
        assert "failed" not in caplog.text  # to wait for the agent is no failure
        assert found["points"] == []
        text = "\n".join(m["content"] for m in found["request"])
        assert "a pump" in text
        assert "too slow" in text
        assert "- x <= k" in text
        again = searches.answer("mine", "I do not know")
        assert again["points"] == []
        assert "cannot be used" in again["request"][-1]["content"]
        (point,) = searches.answer("mine", ANSWER.format(1.5, 4))["points"]
        assert point["params"] == {"x": 1.5, "k": 4}
        assert "the middle" in point["explanation"]
        usage = searches.status("mine")["usage"]
        assert (usage["requests"], usage["failed_requests"]) == (2, 0)
        assert usage["rejected"] == {"unreadable": 1}

    def test_no_random_point_takes_the_place_of_its_answer(self, searches):
        self.begun(searches)
        searches.ask("mine")
        (point,) = searches.answer("mine", ANSWER.format(1.5, 4))["points"]
        searches.tell("mine", point["params"], 2.0)
        found = searches.ask("mine")
        for number in range(5):
            found = searches.answer("mine", f"no idea {number}", id=found["id"])
            assert found["points"] == []
            assert "cannot be used" in found["request"][-1]["content"]
        (point,) = searches.answer("mine", ANSWER.format(2.5, 4), id=found["id"])["points"]
        assert point["source"] == "llm"

    def test_a_new_request_also_follows_the_same_unreadable_answers(self, searches):
        self.begun(searches)
        found = searches.ask("mine")
        for _ in range(4):
            found = searches.answer("mine", "hello", id=found["id"])
            assert "cannot be used" in found["request"][-1]["content"]

    def test_a_random_point_that_was_allowed_says_so(self, searches):
        self.begun(searches, attempts=1, max_fallbacks=2)
        searches.ask("mine")
        searches.answer("mine", ANSWER.format(1.5, 4))
        searches.ask("mine")
        found = searches.answer("mine", "no idea")
        assert found["points"][0]["source"] == "fallback"
        assert "at random, not proposed by agent: 1 of its answers" in found["warning"]

    def test_a_kill_between_prompt_and_answer_loses_nothing(self, searches, tmp_path):
        self.begun(searches)
        first = searches.ask("mine")
        searches.answer("mine", "no idea")  # paid for, and kept
        other = SearchFolder(tmp_path / "searches")  # as after a kill: nothing is in memory
        assert other.ask("mine")["request"][: len(first["request"])] == first["request"]
        assert "no idea" in str(other.ask("mine")["request"])
        (point,) = other.answer("mine", ANSWER.format(1, 2))["points"]
        assert point["params"] == {"x": 1.0, "k": 2}

    def test_an_answer_that_gives_no_point_gets_the_form_wanted(self, searches):
        self.begun(searches, attempts=1)
        searches.ask("mine")
        with pytest.raises(LLMOptError, match=r"`x: <value>, k: <value>`. ask\(\) shows") as error:
            searches.answer("mine", "hello")
        assert "MODEL" not in str(error.value)
        assert "request" in searches.ask("mine")

    def test_the_recommended_trial_need_not_be_the_best(self, searches):
        self.begun(searches, may_stop=True)
        searches.tell("mine", {"x": 1, "k": 2}, 2.0)
        assert "recommended" not in searches.status("mine")
        searches.ask("mine")
        searches.answer("mine", "Lesson: none\nStart from: #1\nProposal: stop")
        status = searches.status("mine")
        assert (status["recommended"]["number"], status["best"]["number"]) == (1, 2)
        assert status["recommended"]["reward"] == 3.0

    def test_it_may_end_the_search(self, searches):
        self.begun(searches, may_stop=True)
        assert "request" in searches.ask("mine")
        ended = searches.answer("mine", "Lesson: none\nStart from: #1\nProposal: stop")
        assert ended["points"] == []
        assert "recommends #1. To go on" in ended["next"]
        status = searches.status("mine")
        assert status["recommended"] == status["best"]
        with called_by(MCP):  # #1 need not be p1
            assert "recommends #1 (p1)" in searches.status("mine")["stopped"]
        assert searches.ask("mine") == ended

    def test_a_note_on_a_result_does_not_continue_an_ended_search(self, searches):
        """The recommendation was lost, and the next ask paid a request that did not name it."""
        self.begun(searches, may_stop=True)
        searches.ask("mine")
        searches.answer("mine", "Lesson: none\nStart from: #1\nProposal: stop")
        searches.tell("mine", {}, feedback="checked by NMR", parts={"ee": 9}, replaces=1)
        status = searches.status("mine")
        assert status["recommended"]["feedback"] == "checked by NMR"
        assert searches.ask("mine")["points"] == []
        searches.tell("mine", {"x": 1, "k": 2}, 2.5)
        status = searches.status("mine")
        assert "stopped" not in status
        assert status["advice"] == "the model recommended #1 after 1 trial; results since: 1"

    def test_an_answer_belongs_to_a_request_or_is_refused(self, searches):
        self.begun(searches)
        assert "waiting" not in searches.status("mine")
        searches.ask("mine")
        assert "answer()" in searches.status("mine")["waiting"]
        searches.answer("mine", ANSWER.format(1.5, 4))
        assert "waiting" not in searches.status("mine")
        with pytest.raises(LLMOptError, match="your answer was not used: no request waits"):
            searches.answer("mine", ANSWER.format(2.5, 4))  # of another agent
        assert searches.status("mine")["usage"]["requests"] == 1
        searches.ask("mine")
        searches.enqueue("mine", {"x": 3, "k": 3})
        unused = searches.answer("mine", ANSWER.format(2.5, 4))
        assert unused["next"].startswith("your answer was not used: ")
        assert unused["points"][0]["params"] == {"x": 3.0, "k": 3}
        (point,) = searches.answer("mine", ANSWER.format(2.5, 4))["points"]
        assert point["params"] == {"x": 2.5, "k": 4}

    def test_an_answer_to_another_request_is_refused(self, searches):
        self.begun(searches)
        first = searches.ask("mine")["id"]
        second = searches.ask("mine", fixed={"k": 4})["id"]  # of another agent
        assert first != second
        with pytest.raises(LLMOptError, match=f"to request '{first}', and {second} waits"):
            searches.answer("mine", ANSWER.format(1.5, 4), {"k": 4}, id=first)
        (point,) = searches.answer("mine", ANSWER.format(1.5, 4), {"k": 4}, id=second)["points"]
        assert point["params"] == {"x": 1.5, "k": 4}

    def test_an_answer_after_a_result_is_refused_with_the_cause(self, searches):
        self.begun(searches)
        first = searches.ask("mine")["id"]
        searches.tell("mine", {"x": 1, "k": 2}, 2.0)
        with pytest.raises(LLMOptError, match=r"a result was recorded since. ask\(\) shows"):
            searches.answer("mine", ANSWER.format(1.5, 4), id=first)

    def test_the_shell_says_who_answers(self, searches, tmp_path):
        self.begun(searches)
        with pytest.raises(LLMOptError, match=r"of `llmopt mcp`. Give --model"):
            open_file(tmp_path / "searches" / "mine.json")

    def test_an_empty_answer_is_called_empty(self, searches):
        self.begun(searches)
        with pytest.raises(LLMOptError, match="text is empty"):
            searches.answer("mine", " ")

    def test_one_at_a_time(self, searches):
        self.begun(searches)
        with pytest.raises(LLMOptError, match="one at a time"):
            searches.ask("mine", 2)
        create(searches, "theirs", SEARCH)
        with pytest.raises(LLMOptError, match="its own model"):
            searches.answer("theirs", "x: 1, k: 2")


class TestSearchFolder:
    @pytest.mark.parametrize(
        "name", ["../x", "/etc/passwd", "a/b", "", ".", "..", "a" * 65, "a\x00b", "x.json", 3, None]
    )
    def test_a_name_is_no_path(self, searches, name, tmp_path):
        before = sorted(tmp_path.rglob("*"))
        for call in (
            lambda: create(searches, name, SEARCH),
            lambda: searches.ask(name),
            lambda: searches.tell(name, {}, 1),
            lambda: searches.status(name),
        ):
            with pytest.raises(LLMOptError, match="name="):
                call()
        assert sorted(tmp_path.rglob("*")) == before

    @pytest.mark.parametrize("suffix", [".json", ".jsonl"])
    def test_a_link_is_not_followed(self, searches, tmp_path, suffix):
        folder = tmp_path / "searches"
        (folder / "a.json").write_text(json.dumps(SEARCH))
        outside = tmp_path / "outside"
        before = json.dumps(SEARCH) if suffix == ".json" else ""
        outside.write_text(before)
        (folder / f"a{suffix}").unlink(missing_ok=True)
        (folder / f"a{suffix}").symlink_to(outside)
        for call in (searches.status, searches.ask):
            with pytest.raises(LLMOptError, match="it is a link"):
                call("a")
        assert outside.read_text() == before

    def test_reading_waits_for_nobody(self, tmp_path):
        searches = SearchFolder(tmp_path / "searches", wait=0)
        create(searches, "mine", SEARCH)
        searches.tell("mine", {"x": 1, "k": 2}, 3)
        described = tmp_path / "searches" / "mine.json"
        with contextlib.closing(open_file(described)):
            assert searches.status("mine")["trials"] == len(searches.trials("mine")) == 1
            with pytest.raises(LLMOptError, match="in use"):
                searches.tell("mine", {"x": 1, "k": 2}, 3)

    def test_a_result_or_a_failure(self, searches):
        create(searches, "mine", SEARCH)
        with pytest.raises(LLMOptError, match='got both "reward"'):
            searches.tell("mine", {"x": 1, "k": 2}, 3, failed="no power")

    def test_searches_that_are_begun_at_once_are_whole(self, searches, tmp_path):
        secret = tmp_path / "secret"
        secret.write_text("mine")
        (tmp_path / "searches" / f".a.json.{os.getpid()}.part").symlink_to(secret)
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: create(searches, "a", SEARCH), range(16)))
        assert {f["trials"] for f in found} == {0}
        kept = json.loads((tmp_path / "searches" / "a.json").read_text())
        assert kept == {**SEARCH, "description": ""}
        assert secret.read_text() == "mine"

    def test_trials_are_counted_as_in_the_prompt(self, searches):
        create(searches, "mine", {**SEARCH, "model": "agent", "warmup": 1})
        point = searches.ask("mine")["points"][0]["params"]
        told = searches.tell("mine", point, 3.0)
        assert told["trial"]["number"] == told["best"]["number"] == 1
        assert (
            searches.status("mine")["best"]["number"] == searches.trials("mine")[0]["number"] == 1
        )
        assert "#1 |" in str(searches.ask("mine")["request"])

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"space": {f"p{i}": {"type": "boolean"} for i in range(5000)}}, "at most 1000"),
            ({"space": {"c": {"enum": list(range(2000))}}}, "1 to 1000"),
            ({"description": "a" * 10**6}, "characters"),
            ({"space": {}}, "empty"),
            ({"model": "openai:gpt-6-luna"}, "may not be asked here"),
            ({"model": "openai+http://evil.example/v1:m"}, "may not be asked here"),
            ({"model": "folder:/tmp/x"}, "may not be asked here"),
            ({"prompt": "/etc/passwd"}, "prompt="),
            ({"storage": "/tmp/evil.jsonl"}, "unknown key"),
            ({"callbacks": []}, "unknown key"),
            ({"warmup": -1}, "warmup"),
            ({"warmup": 10**30}, "expected a whole number from 0 to"),
            ({"constraints": ["x <= " + "1 + " * 10**5 + "1"]}, "characters"),
            ({"constraints": "x ** 9999999 <= 1"}, "not linear"),
            ({"start": [{"params": {"x": 99, "k": 0}}]}, "outside"),
            ({"constraints": 5}, "expected a list of linear"),
            (
                {"batch_size": 10**9},
                "batch_size=1000000000: expected a whole number from 1 to 1,000",
            ),
            ({"attempts": 10**9}, "attempts=1000000000: expected a whole number from 1 to 1,000"),
            ({"seed": "a"}, "seed"),
            ({"direction": "sideways"}, "direction"),
        ],
    )
    def test_hostile_descriptions(self, searches, tmp_path, change, said):
        with pytest.raises(LLMOptError, match=said):
            create(searches, "mine", {**SEARCH, **change})
        assert list((tmp_path / "searches").iterdir()) == []

    def test_a_file_that_was_changed_cannot_name_another_model(self, searches, tmp_path):
        create(searches, "mine", SEARCH)
        path = tmp_path / "searches" / "mine.json"
        path.write_text(json.dumps({**SEARCH, "model": "folder:/tmp/x"}))
        with pytest.raises(LLMOptError, match="may not be asked here"):
            searches.ask("mine")

    def test_caps_of_the_server_hold_whatever_the_agent_says(self, tmp_path):
        searches = SearchFolder(tmp_path, caps={"max_requests": 0, "max_cost": None})
        search = {**SEARCH, "model": "agent", "warmup": 1, "max_requests": 99}
        create(searches, "mine", search)
        searches.tell("mine", {"x": 1, "k": 1}, 1.0)
        with pytest.raises(LLMOptError, match="max_requests=0"):
            searches.ask("mine")


# -- the official client --------------------------------------------------------------------


@contextlib.asynccontextmanager
async def connected(folder, *options):
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    arguments = ["-m", "llmopt", "mcp", "--folder", str(folder), *options]
    transport = stdio_client(StdioServerParameters(command=sys.executable, args=arguments))
    async with Client(transport) as client:
        yield client


async def call(client, tool, /, **arguments):
    result = await client.call_tool(tool, arguments)
    if result.is_error:
        raise LLMOptError(result.content[0].text)
    found = result.structured_content
    return found.get("result", found) if isinstance(found, dict) else found


class TestClient:
    pytestmark = pytest.mark.skipif(
        not __import__("importlib.util").util.find_spec("mcp"), reason="needs the package mcp"
    )

    def test_a_whole_search(self, tmp_path):
        async def go():
            async with connected(tmp_path / "s") as client:
                tools = {t.name: t for t in (await client.list_tools()).tools}
                assert {"create_search", "ask", "answer", "tell", "status"} <= set(tools)
                assert "space" in tools["create_search"].input_schema["properties"]
                await call(
                    client,
                    "create_search",
                    name="mine",
                    space=SPACE,
                    direction="minimize",
                    model="agent",
                    start=[{"params": {"x": 4, "k": 4}, "words": "now"}],
                    options={"warmup": 2, "seed": 0},
                )
                for _ in range(2):
                    (point,) = (await call(client, "ask", name="mine"))["points"]
                    reward = point["params"]["x"] ** 2
                    await call(client, "tell", name="mine", params=point["params"], reward=reward)
                found = await call(client, "ask", name="mine")
                assert "is now." in found["request"][-1]["content"]
                found = await call(client, "answer", name="mine", text=ANSWER.format(0.5, 1))
                params = found["points"][0]["params"]
                told = await call(client, "tell", name="mine", params=params, failed="no power")
                assert told["trial"]["state"] == "failed"
                assert (await call(client, "status", name="mine"))["trials"] == 3
                assert len(await call(client, "trials", name="mine", last=2)) == 2
                with pytest.raises(LLMOptError, match="name="):
                    await call(client, "ask", name="../../etc/passwd")
                with pytest.raises(LLMOptError, match="outside"):
                    await call(client, "tell", name="mine", params={"x": 9, "k": 1}, reward=1)

        asyncio.run(go())

    def test_a_kill_in_the_middle(self, tmp_path):
        killed = []

        async def begun():
            async with connected(tmp_path) as client:
                await call(
                    client,
                    "create_search",
                    name="mine",
                    space=SPACE,
                    direction="maximize",
                    model="agent",
                    options={"warmup": 1, "seed": 0},
                )
                (point,) = (await call(client, "ask", name="mine"))["points"]
                await call(client, "tell", name="mine", params=point["params"], reward=1)
                await call(client, "ask", name="mine")
                await call(client, "answer", name="mine", text="what?")
                killed.extend(children())
                for process in killed:
                    os.kill(process, signal.SIGKILL)
                with pytest.raises(BaseException):  # noqa: B017, PT011
                    await asyncio.wait_for(call(client, "status", name="mine"), 20)

        async def again():
            async with connected(tmp_path) as client:
                found = await call(client, "ask", name="mine")
                assert "what?" in str(found["request"])
                found = await call(client, "answer", name="mine", text=ANSWER.format(1, 2))
                assert found["points"][0]["params"] == {"x": 1.0, "k": 2}
                assert (await call(client, "status", name="mine"))["usage"]["requests"] == 2

        with contextlib.suppress(BaseException):
            asyncio.run(begun())
        assert len(killed) == 1
        asyncio.run(again())


def children():
    """Return the servers that this process has started."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                stat = open(f"/proc/{entry}/stat").read().rpartition(")")[2].split()
                if (
                    int(stat[1]) == os.getpid()
                    and b"mcp" in open(f"/proc/{entry}/cmdline", "rb").read()
                ):
                    found.append(int(entry))
    return found


@pytest.mark.defect(15)
@pytest.mark.parametrize("text", ['{"loss": 0.3}', "[1, 2]", "null", "true", "3", '"a"'])
@pytest.mark.parametrize("key", ["feedback", "failed"])
def test_text_that_is_json_stays_text(searches, key, text):
    pytest.importorskip("mcp")
    from llmopt.commands.mcp import make_server

    server = make_server(searches)
    create(searches, "mine", SEARCH)
    told = {"name": "mine", "params": {"x": 1, "k": 1}, key: text}
    asyncio.run(server.call_tool("tell", told | ({"reward": 1.0} if key == "feedback" else {})))
    assert searches.trials("mine")[0]["feedback"] == text


def test_a_number_is_not_converted_and_a_repeat_is_warned_of(searches):
    pytest.importorskip("mcp")
    from llmopt.commands.mcp import make_server

    server = make_server(searches)
    create(searches, "mine", SEARCH)
    point = {"name": "mine", "params": {"x": 1, "k": 1}}
    for wrong, said in (
        ({"reward": True}, "reward=True is a bool: expected a single real number"),
        ({"reward": "8"}, "reward='8': expected a number, not a text: write 8"),
        ({"reward": 1.0, "params": 5}, "tell: params=5; expected an object or a text$"),
        ({"reward": 1.0, "feedback": 5}, "tell: feedback=5; expected a text$"),
    ):
        with pytest.raises(Exception, match=said):
            asyncio.run(server.call_tool("tell", {**point, **wrong}))
    assert "warning" not in searches.tell(**point, reward=1)["trial"]
    (shown,) = asyncio.run(server.call_tool("tell", {**point, "reward": 1})).content
    said = json.loads(shown.text)["trial"]["warning"]
    assert "trial 1 was recorded again" in said
    assert "tell the result with replaces=1." in said  # as this argument counts


def test_a_cap_of_the_server_is_named(tmp_path):
    searches = SearchFolder(tmp_path / "s", caps={"max_requests": 5})
    said = "max_requests=50 is capped: this server allows at most 5"
    assert create(searches, "mine", {**SEARCH, "max_requests": 50})["warning"] == said
    assert "warning" not in create(searches, "less", {**SEARCH, "max_requests": 4})


def test_an_unknown_argument_is_refused_by_its_name(searches):
    pytest.importorskip("mcp")
    from llmopt.commands.mcp import make_server

    server = make_server(searches)
    create(searches, "mine", SEARCH)
    for tool, wrong, near in (("tell", "feedbak", "feedback"), ("ask", "count", "name")):
        told = {"name": "mine", "params": {"x": 1, "k": 1}, "reward": 1.0}
        told = told if tool == "tell" else {"name": "mine"}
        with pytest.raises(Exception, match=f"unknown argument '{wrong}'.*'{near}'"):
            asyncio.run(server.call_tool(tool, {**told, wrong: "2"}))
    assert searches.trials("mine") == []
    with pytest.raises(Exception, match="unknown tool 'tel'; did you mean 'tell'"):
        asyncio.run(server.call_tool("tel", {"name": "mine"}))


def test_no_error_repeats_the_whole_of_a_long_word(searches):
    pytest.importorskip("mcp")
    from llmopt.commands.mcp import make_server

    server = make_server(searches)
    create(searches, "mine", SEARCH)
    for tool, arguments in (
        ("tell", {"name": "mine", "params": {"x": 10**4000, "k": 1}, "reward": 1.0}),
        ("tell", {"name": "mine", "params": {"9" * 5000: 1}, "reward": 1.0}),
        (
            "create_search",
            {"name": "a", "space": {"x": {"type": "9" * 5000}}, "direction": "minimize"},
        ),
        ("create_search", {"name": "a", "space": SPACE, "direction": "9" * 5000}),
    ):
        with pytest.raises(Exception, match=r"9999|0000") as caught:
            asyncio.run(server.call_tool(tool, arguments))
        assert len(str(caught.value)) < 1000


def test_a_trial_is_also_named_by_its_point(searches):
    create(searches, "s", SEARCH | {"noisy": True})
    for x, reward in ((1, 3.0), (1, 4.0), (2, 5.0)):
        told = searches.tell("s", {"x": x, "k": 2}, reward)["trial"]
    assert (told["number"], told["label"]) == (3, "#2")
    assert searches.tell("s", {}, 6.0, replaces="#2")["trial"]["number"] == 3
    gone = searches.withdraw("s", trial="#2")
    assert (gone["number"], gone["label"], gone["params"]["x"]) == (3, "#2", 2.0)
    assert [t["label"] for t in searches.trials("s")] == ["#1", "#1", "#2"]


def test_a_withdrawn_trial_is_named_and_comes_back_with_its_parts(searches):
    create(searches, "s", SEARCH)
    searches.tell("s", {"x": 1, "k": 2}, 5.0, feedback="brown", parts={"ee": 9, "waste": 1})
    searches.withdraw("s", trial=1)
    (gone,) = searches.trials("s")
    assert (gone["state"], gone["old_reward"], gone["reward"]) == ("withdrawn", 5.0, None)
    assert (gone["old_parts"], gone["old_feedback"]) == ({"ee": 9, "waste": 1}, "brown")
    back = searches.tell("s", {}, 6.0, parts={"waste": None}, replaces=1)["trial"]
    assert (back["reward"], back["parts"], back["feedback"]) == (6.0, {"ee": 9}, "brown")
    assert "with its former part ee, feedback" in back["warning"]


def test_a_point_beyond_a_bound_is_measured_again(searches):
    create(searches, "s", SEARCH)
    with pytest.raises(LLMOptError, match="is outside"):
        searches.tell("s", {"x": 6, "k": 2}, 5.0)
    (asked,) = searches.ask("s")["points"]
    measured = {**asked["params"], "x": 6}
    searches.tell("s", measured, 5.0, instead_of="p1")
    assert searches.tell("s", measured, 6.0)["trial"]["params"] == measured


def test_the_words_of_a_queued_point_are_shown(searches):
    create(searches, "s", {**SEARCH, "start": [{"words": "now", "params": {"x": 1, "k": 2}}]})
    one = searches.enqueue("s", {"k": 3}, "an idea")
    queued = searches.status("s")["queued"]
    assert queued[1:] == [one]
    assert [(p["params"], p["explanation"]) for p in queued] == [
        ({"x": 1.0, "k": 2}, "now"),
        ({"k": 3}, "an idea"),
    ]
    with open_file(searches._folder / "s.json", asks=False) as optimizer:
        first, second = optimizer.queued_proposals
        assert (first.explanation, second.words) == ("now", "an idea")
        assert optimizer.queued == [{"x": 1.0, "k": 2}, {"k": 3}]
