"""The wheel, alone in a clean environment and far from the source tree, has everything it needs."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from roma_ray import __version__

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def clean_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has the files of the wheel; what the wheel depends on comes from this environment."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=False, symlinks=True)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site_packages)
    # A path file of ours does not make Python read those of the other folder, so that the source tree stays unseen.
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


def run(python: Path, cwd: Path, code: str) -> str:
    environ = {"PATH": os.environ["PATH"], "HOME": str(cwd)}
    done = subprocess.run([python, "-c", code], cwd=cwd, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_carries_the_config_groups_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("config.yaml", "cluster/inline.yaml", "profile/general.yaml"):
        assert f"roma_ray/conf/{name}" in names
    assert "roma_ray/py.typed" in names
    assert {name.split("/")[0] for name in names} == {"roma_ray", f"roma_ray-{__version__}.dist-info"}


def test_both_commands_answer_from_the_wheel_alone(clean_python: Path, tmp_path: Path) -> None:
    solve = "import sys; from roma_ray.solve import main; sys.exit(main(['--help']))"
    assert "goal=TEXT" in run(clean_python, tmp_path, solve)
    command = (
        "import sys; from importlib.metadata import entry_points\n"
        "(found,) = {e.value for e in entry_points(group='console_scripts', name='roma-ray')}\n"
        "sys.argv = ['roma-ray', '--help']\n"
        "entry_points(group='console_scripts')['roma-ray'].load()()"
    )
    assert "explain" in run(clean_python, tmp_path, command)


def test_the_config_is_found_from_a_foreign_folder(clean_python: Path, tmp_path: Path) -> None:
    code = (
        "import roma_ray; from roma_ray.config import load_config\n"
        "config = load_config(['cluster=inline', 'profile=general']).config\n"
        "print(roma_ray.__file__, config.cluster.mode, config.verify)"
    )
    where, mode, verify = run(clean_python, tmp_path, code).split()
    assert Path(where).is_relative_to(clean_python.parents[1])
    assert (mode, verify) == ("inline", "root")
