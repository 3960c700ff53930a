import os
import threading
from pathlib import Path

import pytest

from roma_ray.errors import FolderUnusable
from roma_ray.storage.files import SECTIONS, FileStorage

TRAVERSALS = [
    "",
    ".",
    "..",
    "/",
    "/etc/passwd",
    "//etc/passwd",
    "../victim",
    "../../victim",
    "../../../victim",
    "./../../victim",
    "artifacts/..",
    "artifacts/../..",
    "artifacts/../../victim",
    "artifacts/../../../victim",
    "artifacts/./.././../victim",
    "artifacts/x/../../../../victim",
    "artifacts//..//..//victim",
    "artifacts/../results/../../victim",
    "..\\..\\victim",
    "artifacts\\..\\..\\victim",
    "artifacts/..\\../victim",
    "artifacts/x\0/../../victim",
    "~/victim",
    "victim",
    "artifactsX/victim",
    "C:\\victim",
    "file:///victim",
    "artifacts/link/victim",
    "artifacts/chain/victim",
    "artifacts/filelink",
]


@pytest.fixture
def files(tmp_path: Path) -> FileStorage:
    (tmp_path / "victim").write_text("untouched")
    (tmp_path / "base/executions").mkdir(parents=True)
    (tmp_path / "base/executions/victim").write_text("untouched")
    files = FileStorage(tmp_path / "base", "run1")
    (files.root / "artifacts/link").symlink_to(tmp_path)
    (files.root / "artifacts/chain").symlink_to(files.root / "artifacts/link")
    (files.root / "artifacts/filelink").symlink_to(tmp_path / "victim")
    return files


@pytest.mark.parametrize("name", TRAVERSALS)
def test_no_spelling_of_a_name_reaches_outside_the_run(files: FileStorage, tmp_path: Path, name: str) -> None:
    before = set(tmp_path.rglob("*"))
    for act in (files.get_bytes, files.exists, files.delete, files.list, lambda n: files.put_text(n, "evil")):
        with pytest.raises(FolderUnusable) as error:
            act(name)
        assert "artifacts/report.md" in error.value.cure
    assert set(tmp_path.rglob("*")) == before
    assert (tmp_path / "victim").read_text() == "untouched"


@pytest.mark.parametrize("name", ["artifacts/%2e%2e/%2e%2e/x", "artifacts/…/x", "artifacts/. . /x", "artifacts/~/x"])
def test_names_that_only_look_dangerous_stay_inside(files: FileStorage, name: str) -> None:
    path = files.put_text(name, "ok")
    assert path.is_relative_to(files.root / "artifacts") and files.get_text(name) == "ok"


@pytest.mark.parametrize("run_id", ["", ".", "..", "../x", "a/b", "/x", "a\0", ".hidden"])
def test_a_run_id_cannot_lead_outside_either(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(FolderUnusable):
        FileStorage(tmp_path, run_id)


def test_files_are_put_got_listed_and_deleted_by_name(files: FileStorage) -> None:
    files.put_text("outputs/a/report.md", "# grüezi")
    files.put_bytes("outputs/b.bin", b"\xff\x00")
    assert files.get_text("outputs/a/report.md") == "# grüezi" and files.get_bytes("outputs/b.bin") == b"\xff\x00"
    assert files.list("outputs") == ["outputs/a/report.md", "outputs/b.bin"]
    assert files.list("artifacts") == [] and files.list("logs/none") == []
    files.delete("outputs/b.bin")
    files.delete("outputs/b.bin")
    assert not files.exists("outputs/b.bin") and files.exists("outputs/a/report.md")
    with pytest.raises(FolderUnusable, match="No such file"):
        files.get_bytes("outputs/b.bin")
    assert sorted(os.listdir(files.root)) == sorted(SECTIONS)


def test_a_reader_sees_a_whole_file_while_others_overwrite_it(files: FileStorage) -> None:
    versions = {letter.encode() * 200_000 for letter in "abc"}
    files.put_bytes("temp/x", b"a" * 200_000)
    threads = [threading.Thread(target=lambda v=v: [files.put_bytes("temp/x", v) for _ in range(10)]) for v in versions]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert files.get_bytes("temp/x") in versions
    assert files.list("temp") == ["temp/x"]


def test_a_base_path_that_is_a_file_is_named_with_its_cure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderUnusable, match=r"file.*Not a directory") as error:
        FileStorage(tmp_path / "file", "run1")
    assert "storage.base_path" in error.value.cure
