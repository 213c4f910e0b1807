"""The folder of a run: one run writes it, however many want it at the same time, and nobody deletes it under a run that is alive."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from cluster.load_config import load_config
from cluster.run_folder import RunFolder, check_free, claim
from envs.errors import InputError

CONFIG = load_config("number-search-tiny")
OWNER = """
import sys
from pathlib import Path
from cluster.load_config import load_config
from cluster.run_folder import RunFolder
RunFolder.create(Path(sys.argv[1]), load_config("number-search-tiny"), overwrite=False)
print("mine", flush=True)
sys.stdin.read()
"""


def test_a_place_that_cannot_be_written_is_a_message(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for make in (
        lambda: RunFolder.create(tmp_path / "file" / "run", CONFIG, overwrite=False),
        lambda: claim("a", tmp_path / "file" / "runs"),
    ):
        with pytest.raises(InputError, match="cannot be made: Not a directory"):
            make()


def test_runs_are_numbered_by_the_first_free_number(tmp_path: Path) -> None:
    assert [claim("a", tmp_path), claim("a", tmp_path), claim("b", tmp_path)] == [tmp_path / name for name in ("a-1", "a-2", "b-1")]
    (tmp_path / "a-1").rmdir()
    assert claim("a", tmp_path) == tmp_path / "a-1"


def test_a_run_that_is_alive_keeps_its_folder_even_from_overwrite(tmp_path: Path) -> None:
    run = tmp_path / "run"
    owner = subprocess.Popen([sys.executable, "-c", OWNER, run], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with owner:
        assert owner.stdout is not None and owner.stdout.readline() == "mine\n"
        (run / "trajectories").mkdir()
        for take in (check_free, lambda path, overwrite: RunFolder.create(path, CONFIG, overwrite=overwrite)):
            with pytest.raises(InputError, match=rf"a run is writing there \(pid {owner.pid}\)"):
                take(run, overwrite=True)
        assert (run / "trajectories").is_dir()
        owner.kill()
    with pytest.raises(InputError, match="exists; give another"):
        RunFolder.create(run, CONFIG, overwrite=False)
    RunFolder.create(run, CONFIG, overwrite=True).close()
    assert not (run / "trajectories").exists(), "the older run is deleted"
    assert (run / "config.yaml").is_file()


@pytest.mark.parametrize("overwrite", [False, True])
def test_one_of_many_that_want_the_same_folder_gets_it(tmp_path: Path, overwrite: bool) -> None:
    together = Barrier(8)

    def take() -> RunFolder | str:
        together.wait()
        try:
            return RunFolder.create(tmp_path / "run", CONFIG, overwrite=overwrite)
        except InputError as error:
            return str(error)

    with ThreadPoolExecutor(8) as pool:
        taken = [future.result() for future in [pool.submit(take) for _ in range(8)]]
    (winner,) = [folder for folder in taken if isinstance(folder, RunFolder)]
    assert (winner.path / "config.yaml").is_file()
    winner.close()
    assert all("a run is writing there" in one or "exists; give" in one for one in taken if isinstance(one, str))
