import sqlite3

import pytest

from hardwon.apps.cli import doctor
from hardwon.runtime.environments import _OPENERS


def test_the_report_names_what_matters(hardwon_json):
    report = hardwon_json("doctor")
    assert report["ok"]
    assert report["sqlite"]["fts5"]
    assert report["packages"]["core"]["numpy"]
    assert set(report["environments"]) == set(_OPENERS)
    assert report["library"] is None


def test_a_missing_package_names_its_extra(hardwon, monkeypatch):
    known = doctor._find_version
    monkeypatch.setattr(doctor, "_find_version", lambda name: None if name == "minigrid" else known(name))
    printed = " ".join(hardwon("doctor").stdout.split())
    assert "games minigrid missing: pip install '.[games]'" in printed
    assert "babyai pip install '.[games]'" in printed
    assert printed.endswith("Install what is missing: pip install '.[games]'")  # and no other extra


def test_the_command_that_installs_what_is_missing_is_one_line(hardwon, monkeypatch):
    """It is copied into a shell, however narrow the window is."""
    monkeypatch.setattr(doctor, "_find_version", lambda name: None)
    lines = hardwon("doctor", expect=1).stdout.splitlines()
    assert lines[-1] == f"Install what is missing: pip install '.[{','.join(doctor.COMMON)}]'"
    assert len(lines) < 40


def test_every_environment_says_what_to_run_from_a_clone(monkeypatch):
    """Without any package, and then with the packages but without the programs and games that they need."""
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(doctor, "_find_version", lambda name: None)
    needs = doctor.check_environments(doctor.find_packages())
    assert needs["bfcl"] == "pip install --no-deps bfcl-eval mpmath"
    extras = {"textworld": "games", "babyai": "games"}
    assert all(needs[n] == f"pip install '.[{extras.get(n, n)}]'" for n in needs if n not in ("bfcl", "wiki"))
    assert needs["wiki"] is None  # it needs nothing but hardwon
    monkeypatch.setattr(doctor, "_find_version", lambda name: "1.0")
    needs = doctor.check_environments(doctor.find_packages())
    assert [name for name, need in needs.items() if need is None] == [
        "textworld",
        "babyai",
        "bfcl",
        "scienceworld",
        "wiki",
    ]
    assert "ALFWORLD_DATA" in str(needs["alfworld"])
    assert "chromium and chromedriver" in str(needs["miniwob"])
    monkeypatch.setenv("ALFWORLD_DATA", "games")
    assert doctor.check_environments(doctor.find_packages())["alfworld"] is None


def test_a_missing_core_package_is_an_error(hardwon, monkeypatch):
    known = doctor._find_version
    monkeypatch.setattr(doctor, "_find_version", lambda name: None if name == "numpy" else known(name))
    hardwon("doctor", expect=1)


def test_without_a_driver_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert doctor.find_device() == {"gpus": []}


def test_a_sound_library(hardwon, hardwon_json, learnt):
    assert hardwon_json("doctor", learnt)["library"]["sound"]
    assert "sound: " in hardwon("doctor", learnt).stdout


def test_a_library_that_is_not_sound_is_an_error(hardwon, own):
    with sqlite3.connect(own) as connection:
        connection.execute("DELETE FROM words")
    connection.close()
    assert "not sound: " in hardwon("doctor", own, expect=1).stdout


def test_the_library_names_its_embedder_and_its_index_files(hardwon_json, learnt):
    library = hardwon_json("doctor", learnt)["library"]
    assert library["embedder"] == "hashing"
    assert library["namespaces"]["default"]["episodes"] == 40
    assert library["index"]["valid"] in (True, None)


def test_a_damaged_index_file_is_found(hardwon_json, own):
    folder = own.with_name(f"{own.name}.index")
    folder.mkdir(exist_ok=True)
    (folder / "1-states").write_bytes(b"not an index")
    library = hardwon_json("doctor", own, expect=1)["library"]
    assert library["index"]["valid"] is False
    assert any("states" in problem["where"] for problem in library["problems"])


@pytest.mark.parametrize("content", [b"hello", b"SQLite format 3\x00 and then nothing"])
def test_what_is_no_library_is_a_finding(hardwon_json, tmp_path, content):
    """The rest of the report is still made."""
    (tmp_path / "a.txt").write_bytes(content)
    report = hardwon_json("doctor", tmp_path / "a.txt", expect=1)
    assert report["packages"]["core"]["numpy"]
    assert "a.txt" in report["library"]["problems"][0]["what"]
