"""The data of an evaluation: what is kept, how it is read, and what is refused."""

import io
import zipfile

import numpy as np
import pytest
from stubs import needs_confinement

from llmopt import Float, LLMOptimizer, ScriptedClient, packing
from llmopt import data as stored
from llmopt.data import NO_DATA, TrialData, read_data_file
from llmopt.errors import StorageError
from llmopt.packing import DataError, pack, summary, unpack

SPACE = {"x": Float(0.0, 1.0)}
DATA = {
    "steps": [np.ones((3, 2), dtype="f4"), np.zeros((5, 2), dtype="f4")],
    "table": {"t": np.arange(4), "kind": ["a", "bb", "c", "d"]},
    "info": {"speed": [[1.0, 2.0], [3.0]]},
    "mass": 2.5,
    "ended": "fell",
    "flags": np.array([True, False]),
    "plain": [1, 2, 3],
}


def test_what_is_packed_is_read_again():
    found = unpack(pack(DATA))
    assert [a.shape for a in found["steps"]] == [(3, 2), (5, 2)]
    assert found["steps"][0].dtype == "float32"
    assert found["table"]["kind"].tolist() == ["a", "bb", "c", "d"]
    assert [a.tolist() for a in found["info"]["speed"]] == [[1.0, 2.0], [3.0]]
    assert (float(found["mass"]), str(found["ended"])) == (2.5, "fell")
    assert found["flags"].tolist() == [True, False]
    assert found["plain"].tolist() == [1, 2, 3]
    assert pack(DATA) == pack(DATA)
    assert summary(found) == {
        "steps": "2 arrays (3 to 5)×2",
        "table": "{t: 4, kind: 4}",
        "info": "{speed: 2 arrays (1 to 2)}",
        "mass": "a number",
        "ended": "a text",
        "flags": "2",
        "plain": "3",
    }
    with np.load(io.BytesIO(pack(DATA)), allow_pickle=False) as file:  # anybody can read it
        assert "steps/0" in file.files


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"a": object()}, "data\\['a'\\]"),
        ({"a": {"b": {"c": 1}}}, "nested more than one level"),
        ({"a": []}, "empty list"),
        ({"a": {}}, "empty"),
        ({"a/b": 1}, "a/b"),
        ({"1": 1}, "'1'"),
        ({"": 1}, "''"),
        ({"\x1b": 1}, "x1b"),
        ({3: 1}, "'3'"),
        ({"a": np.zeros(1, dtype="M8[s]")}, "datetime64"),
        ({"a": [np.zeros(1)] * 10_001}, "more than 10000 arrays"),
        ([1, 2], "expected a mapping"),
    ],
)
def test_what_cannot_be_kept_is_named(data, named):
    with pytest.raises(DataError, match=named):
        TrialData.of(data)


def test_too_much_is_refused_with_what_to_do(monkeypatch):
    monkeypatch.setattr(packing, "MOST_BYTES", 1000)
    with pytest.raises(DataError, match=r"the largest is 'b'.*keep fewer steps, or float32"):
        pack({"a": np.zeros(2), "b": np.zeros(500)})


def archive(**members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as folder:
        for name, content in members.items():
            folder.writestr(name.replace("__", "/") + ".npy", content)
    return file.getvalue()


def npy(shape="(1,)", descr="'<f8'", body=b"", fortran="False"):
    header = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}}}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + body


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK",
        b"PK\x05\x06" + bytes(18),
        archive(a=b"no array"),
        archive(a=npy("(10**12, 0)")),
        archive(a=npy("(1000000000000, 0)")),
        archive(a=npy("(1000000000000,)")),
        archive(a=npy("(-1,)")),
        archive(a=npy(descr="'|O'", body=b"cos\nsystem\n(S'true'\ntR.")),
        archive(a=npy(descr="[('b', '|O')]")),
        archive(a=npy("(1,)", body=bytes(9))),
        archive(a=npy("(2,)" * 40)),
        archive(a__b__c__d=npy(body=bytes(8))),
        archive(a=npy(body=bytes(8)), a__b=npy(body=bytes(8))),
        archive(a__0=npy(body=bytes(8)), a__2=npy(body=bytes(8))),
        "larger than allowed",
    ],
)
def test_a_file_that_anybody_made_is_data_or_an_error(content):
    if content == "larger than allowed":
        content = archive(a=bytes(300 << 20))
    if content == b"PK\x05\x06" + bytes(18):  # no array at all
        assert unpack(content) == {}
        return
    with pytest.raises(DataError):
        unpack(content)


def test_a_search_keeps_data_and_finds_them_again(tmp_path):
    file = tmp_path / "s.jsonl"
    client = ScriptedClient(["x: 0.5"] * 5, default_prompt="props")
    with LLMOptimizer(SPACE, client, storage=file, warmup=2) as optimizer:
        optimizer.tell(optimizer.ask(), 1.0, data=DATA)
        trial = optimizer.tell(optimizer.ask(), 2.0)
        assert trial.data is NO_DATA
        assert not trial.data
        with pytest.raises(DataError):
            optimizer.tell({"x": 0.3}, 1.0, data={"a": object()})
        assert len(optimizer.trials) == 2
        optimizer.save(tmp_path / "saved.jsonl")
    assert [p.name for p in (tmp_path / "s.jsonl.data").iterdir()] == ["000000.npz"]
    with LLMOptimizer(SPACE, client, storage=file, warmup=2) as again:
        assert float(again.trials[0].data["mass"]) == 2.5
        assert list(again.trials[0].data) == list(DATA)
    loaded = LLMOptimizer.load(tmp_path / "saved.jsonl", client)
    assert float(loaded.trials[0].data["mass"]) == 2.5
    (tmp_path / "s.jsonl.data" / "000000.npz").write_bytes(pack({"mass": 9}))
    with LLMOptimizer(SPACE, client, storage=file, warmup=2) as again:
        with pytest.raises(StorageError, match="not the file that the search wrote"):
            _ = again.trials[0].data["mass"]


@pytest.mark.parametrize("name", ["../000000.npz", "/etc/passwd", "x.npz", "000000.npz/.."])
def test_a_file_of_a_search_names_no_other_file(tmp_path, name):
    with pytest.raises(ValueError, match="the data of a trial is in"):
        TrialData.read({"file": name, "sha256": "0", "words": {}})


def test_a_link_in_place_of_the_data_is_not_followed(tmp_path):
    kept = TrialData.of({"a": 1}).keep_in(tmp_path / "000000.npz")
    (tmp_path / "000000.npz").rename(tmp_path / "other.npz")
    (tmp_path / "000000.npz").symlink_to(tmp_path / "other.npz")
    with pytest.raises(StorageError, match="cannot be read"):
        _ = TrialData(tmp_path / "000000.npz", kept.words, kept.digest)["a"]


@pytest.mark.parametrize("moment", ["before", "between"])
def test_a_link_in_place_of_the_folder_of_the_data_is_not_followed(tmp_path, moment):
    file, folder, other = (tmp_path / name for name in ("s.jsonl", "s.jsonl.data", "other"))
    other.mkdir()
    (other / "000000.npz").write_bytes(b"of another search")
    (other / "laboratory-000007.bin").write_bytes(b"of another search")
    if moment == "before":
        folder.symlink_to(other)
        with pytest.raises(StorageError, match="is a link"):
            LLMOptimizer(SPACE, ScriptedClient([]), storage=file, warmup=2)
        with pytest.raises(StorageError, match="is a link"):
            LLMOptimizer(SPACE, ScriptedClient([]), warmup=2).save(file)
        assert not file.exists()
    else:
        with LLMOptimizer(SPACE, ScriptedClient([]), storage=file, warmup=2) as optimizer:
            folder.symlink_to(other)
            with pytest.raises(StorageError, match="is a link"):
                optimizer.tell(optimizer.ask(), 1.0, data={"mass": 2.0})
    assert sorted(path.name for path in other.iterdir()) == ["000000.npz", "laboratory-000007.bin"]
    assert {path.read_bytes() for path in other.iterdir()} == {b"of another search"}


@pytest.mark.parametrize("kind", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_a_compression_that_nothing_here_writes_is_refused(kind):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as folder:
        folder.writestr("a.npy", bytes(1000))
    sent = bytearray(file.getvalue())
    at = sent.index(b"a.npy") + len("a.npy")
    sent[at + 5 : at + 9] = b"\xff" * 4  # LZMA: a dictionary of 4 GB
    with pytest.raises(DataError, match="compression"):
        unpack(bytes(sent))


@needs_confinement
def test_blocks_find_by_how_much_a_measured_constraint_breaks():
    answers = ["```python\nprint(violation.tolist())\n```", "Proposal: x: 0.7"]
    client = ScriptedClient(answers)
    with LLMOptimizer({"x": Float(0, 1)}, client, "words", compute=True, warmup=0) as optimizer:
        optimizer.tell({"x": 0.25}, 1.0)
        optimizer.tell({"x": 0.5}, 2.0, constraint_violation=0.75)
        assert optimizer.ask() == {"x": 0.7}
    assert "array violation: by how much constraints break" in client.requests[0].text
    assert "[0.0, 0.75]" in client.requests[1].text


def test_files_of_data(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("time,kind\n0.5,a\n1,b\n")
    found = read_data_file(table)["table"]
    assert (found["time"].tolist(), found["kind"].tolist()) == ([0.5, 1.0], ["a", "b"])
    arrays = tmp_path / "a.npz"
    np.savez(arrays, path=np.arange(3))
    assert read_data_file(arrays)["path"].tolist() == [0, 1, 2]
    np.savez(arrays, path=np.array([{}], dtype=object), allow_pickle=True)
    table.write_text("a,a\n1,2\n")
    for path in (arrays, table, tmp_path / "none.npz", tmp_path / "x.txt"):
        with pytest.raises(DataError, match=path.name):
            read_data_file(path)
    assert stored.folder_of("run.jsonl").name == "run.jsonl.data"


def test_a_study_s_arrays_and_reports_are_data():
    optuna = pytest.importorskip("optuna")
    from llmopt.adapters.optuna import LLMSampler

    client = ScriptedClient(["Hypothesis: h.\nStart from: new\nProposal:\nx: 0.5"] * 3)
    sampler = LLMSampler(client, prompt="words", description="d", n_startup_trials=1, seed=1)
    study = optuna.create_study(sampler=sampler)

    def objective(trial):
        value = trial.suggest_float("x", 0, 1)
        trial.set_user_attr("data", {"path": [1.0, 2.0], "a/b": 1} if value == 0.5 else {"a": [1]})
        trial.report(0.3, 2)
        return value

    study.optimize(objective, n_trials=2)
    assert "data[1]: a: 1; reported: {step: 1, value: 1}" in client.requests[0].text


def test_shell_and_mcp_take_a_file(tmp_path):
    from llmopt.errors import LLMOptError
    from llmopt.service.mcp_tools import SearchFolder
    from llmopt.service.search_json import tell

    np.savez(tmp_path / "run-1.npz", path=np.arange(3))
    optimizer = LLMOptimizer(SPACE, ScriptedClient([]))
    given = {"params": {"x": 0.5}, "reward": 1.0}
    list(tell(optimizer, [{**given, "data": str(tmp_path / "run-1.npz")}]))
    assert optimizer.trials[0].data["path"].tolist() == [0, 1, 2]
    with pytest.raises(LLMOptError, match=r"none\.npz"):
        list(tell(optimizer, [{**given, "data": str(tmp_path / "none.npz")}]))
    searches = SearchFolder(tmp_path)
    searches.create_search("s", {"x": {"type": "number", "minimum": 0, "maximum": 1}}, "maximize")
    searches.tell("s", {"x": 0.5}, 1.0, data="run-1.npz")
    assert (tmp_path / "s.jsonl.data" / "000000.npz").exists()
    (tmp_path / "link.npz").symlink_to(tmp_path / "run-1.npz")
    for name in ("../run-1.npz", "link.npz", "/etc/passwd", "x.txt"):
        with pytest.raises(LLMOptError):
            searches.tell("s", {"x": 0.6}, 1.0, data=name)
