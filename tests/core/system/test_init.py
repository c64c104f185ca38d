"""`psrun init`: the project that a newcomer begins with."""

from __future__ import annotations

import pytest

from psrun.cli.init import main
from psrun.errors import ConfigError

FILES = {
    "README.md", "ratings.py", "test_ratings.py", "conf/data/ratings.yaml", "conf/model/factorization.yaml",
    "conf/experiment/first.yaml",
}  # fmt: skip


def test_init_fills_a_new_folder_and_no_other(tmp_path, capsys):
    folder = tmp_path / "new" / "project"
    main([str(folder)])
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == FILES
    assert f"cd {folder}" in capsys.readouterr().out
    (folder / "ratings.py").write_text("# mine\n")
    for there in (folder, folder / "ratings.py"):
        with pytest.raises(ConfigError):
            main([str(there)])
    assert (folder / "ratings.py").read_text() == "# mine\n"
    (tmp_path / "empty").mkdir()
    main([str(tmp_path / "empty")])


@pytest.mark.command
def test_the_experiment_of_a_new_project_composes(psrun, tmp_path):
    done = psrun("init", "--", ".")
    assert (done.code, done.stderr) == (0, "")
    done = psrun("--config-dir", "conf", "experiment=first", "--cfg", "job")
    assert done.code == 0, done.stderr
    assert "_target_: ratings.factorization" in done.stdout
    again = psrun("init", "--", ".")
    assert (again.code, again.stdout) == (2, "")
