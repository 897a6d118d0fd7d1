import sqlite3

from tacit.apps import doctor


def test_the_report_names_what_matters(tacit_json):
    report = tacit_json("doctor")
    assert report["ok"]
    assert report["sqlite"]["fts5"]
    assert report["packages"]["core"]["numpy"]
    assert set(report["environments"]) == {"textworld", "babyai"}
    assert report["library"] is None


def test_a_missing_package_names_its_extra(tacit, monkeypatch):
    known = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "minigrid" else known(name))
    printed = " ".join(tacit("doctor").stdout.split())
    assert "babyai minigrid not installed: pip install 'tacit[babyai]'" in printed
    assert "babyai pip install 'tacit[babyai]'" in printed


def test_a_missing_core_package_is_an_error(tacit, monkeypatch):
    known = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "numpy" else known(name))
    tacit("doctor", expect=1)


def test_without_a_driver_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert doctor.find_device() == {"gpus": []}


def test_a_sound_library(tacit, tacit_json, learnt):
    assert tacit_json("doctor", learnt)["library"]["sound"]
    assert "is sound" in tacit("doctor", learnt).stdout


def test_a_library_that_is_not_sound_is_an_error(tacit, own):
    with sqlite3.connect(own) as connection:
        connection.execute("DELETE FROM words")
    connection.close()
    assert "is not sound" in tacit("doctor", own, expect=1).stdout
