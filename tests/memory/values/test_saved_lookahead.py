"""The cache file of lookahead values: opening a library is fast, and a stale or damaged file is never believed."""

import shutil
from pathlib import Path

import pytest

from hardwon.memory import Diagnosis, ExperienceLibrary, State, Step, Trajectory
from hardwon.memory.situations.episode_map import EpisodeMap
from hardwon.memory.situations.lookahead_keys import COLUMNS, LookaheadKeys
from hardwon.memory.values.filed_lookahead import EpisodeReader
from hardwon.memory.values.lookahead_table import EpisodeRows, Forms, Rows, fit
from hardwon.memory.values.saved_lookahead import Progress, pack, unpack, unpack_episodes

TASK = "find the coin"
CLOSED = State("A box is closed.", task=TASK, location="hall")
OPENED = State("A box is open. There is a coin.", task=TASK, location="hall")
ACTIONS = ("open box", "shake box", "wait")


def play(seed, reward=1.0):
    steps = (
        Step(CLOSED, "shake box", CLOSED, Diagnosis(True), t=0, admissible=ACTIONS),
        Step(CLOSED, "open box", OPENED, Diagnosis(True), t=1, admissible=ACTIONS),
        Step(OPENED, "take coin", OPENED, Diagnosis(True), reward=reward, t=2, admissible=("take coin", "wait")),
    )
    return Trajectory(TASK, steps, True, reward, seed=seed)


def record(path, seeds, reward=1.0):
    with ExperienceLibrary.open(path) as library:
        for seed in seeds:
            library.record(play(seed, reward))
        return look_ahead(library)


def look_ahead(library):
    lookahead = library.look_ahead(CLOSED, ACTIONS, EpisodeMap())
    return lookahead.by_action, lookahead.scale


def list_files(path) -> list[Path]:
    return list(Path(f"{path}.index").glob("*-outlooks-*"))


def find_file(path) -> Path:
    (file,) = list_files(path)
    return file


@pytest.fixture
def reads(monkeypatch):
    """The episodes that are read from their steps."""
    read: list[str] = []
    original = EpisodeReader.read

    def watch(reader, steps):
        read.append(steps[0].pre.task)
        return original(reader, steps)

    monkeypatch.setattr(EpisodeReader, "read", watch)
    return read


def test_a_library_that_is_opened_again_reads_no_episode(path, reads):
    before = record(path, range(30))
    assert list_files(path)
    assert len(reads) == 30
    reads.clear()
    with ExperienceLibrary.open(path) as library:
        assert look_ahead(library) == before
    assert reads == []


def test_new_episodes_are_added_to_what_the_file_holds(path, tmp_path, reads):
    """The lookahead values are those of a library that has read all episodes itself."""
    record(path, range(30))
    reads.clear()
    with ExperienceLibrary.open(path) as library:
        for seed in range(30, 35):
            library.record(play(seed, 0.5))
        again = look_ahead(library)
    assert len(reads) == 5
    shutil.copy(path, tmp_path / "alone.db")
    reads.clear()
    with ExperienceLibrary.open(tmp_path / "alone.db") as library:
        alone = look_ahead(library)
    assert len(reads) == 35
    assert again == alone


def test_a_few_episodes_are_saved_when_the_library_is_closed(path, reads):
    record(path, range(4))
    reads.clear()
    record(path, ())
    assert reads == []


@pytest.mark.parametrize("damage", [b"", b"x", None])
def test_a_damaged_file_is_rebuilt(path, reads, damage, caplog):
    before = record(path, range(30))
    file = find_file(path)
    content = file.read_bytes()
    if damage is None:  # one flipped bit in the middle
        half = len(content) // 2
        content = content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :]
    file.write_bytes(content if damage is None else damage)
    reads.clear()
    assert record(path, ()) == before
    assert len(reads) == 30
    assert "outlooks" in caplog.text
    reads.clear()
    assert record(path, ()) == before  # it was written anew
    assert reads == []


def test_what_was_forgotten_is_not_in_the_lookahead_values(path, reads):
    record(path, range(30))
    with ExperienceLibrary.open(path) as library:
        library.admin.forget(episode=library.episodes.find()[0]["id"])
        assert not list_files(path)  # its keys contain words of the steps
    reads.clear()
    record(path, ())
    assert len(reads) == 29


def test_the_file_of_another_library_is_not_used(path, tmp_path, reads):
    record(path, range(30))
    other = tmp_path / "other.db"
    record(other, range(30), reward=0.1)
    shutil.copy(find_file(path), find_file(other))
    reads.clear()
    record(other, ())
    assert len(reads) == 30


def test_a_restored_backup_does_not_keep_the_newer_file(path, tmp_path, reads):
    record(path, range(10))
    shutil.copy(path, tmp_path / "backup.db")
    record(path, range(10, 40))
    shutil.copy(tmp_path / "backup.db", path)
    reads.clear()
    record(path, ())
    assert len(reads) == 10


def test_a_process_that_is_killed_while_it_writes_leaves_the_old_file(path, reads, monkeypatch):
    """The new file has another name until it is whole."""
    record(path, range(30))
    old = find_file(path).read_bytes()

    def die(self, target):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", die)
        library = ExperienceLibrary.open(path)
        for seed in range(30, 40):
            library.record(play(seed))
        after = look_ahead(library)
        with pytest.raises(KeyboardInterrupt):
            library.close()
    assert find_file(path).read_bytes() == old
    reads.clear()
    assert record(path, ()) == after
    assert len(reads) == 10


def test_a_full_disk_costs_time_and_no_answer(path, monkeypatch, reads):
    def fail(self, target):
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", fail)
    before = record(path, range(30))
    assert not list_files(path)
    assert record(path, ()) == before


def test_a_read_only_library_writes_no_file(path, reads):
    with ExperienceLibrary.open(path) as library:
        for seed in range(30):
            library.record(play(seed))
    with ExperienceLibrary.open(path, read_only=True) as library:
        look_ahead(library)
    assert len(reads) == 30
    assert not list_files(path)


def test_packing_keeps_every_array():
    """Round trip of what the file holds; the empty table is the degenerate case."""
    rows = Rows()
    row = rows.file([f"key {n}" for n in range(COLUMNS)])
    episodes = [EpisodeRows([row], [1.0], [0.1], [False], [True], [True], [(0, row, 0, 0)]), EpisodeRows()]
    forms = Forms()
    forms.first["put {1} in {2}"] = {"pot"}
    for chosen in (episodes, []):
        table = fit(rows, forms, LookaheadKeys(frozenset({"you"})), chosen)
        arrays = pack(table, chosen, Progress(2, 1, 1))
        again, progress = unpack(arrays)
        assert progress == Progress(2, 1, 1)
        assert list(unpack_episodes(arrays, 10)) == chosen
        assert again.forms == forms
        assert again.keys.structural == {"you"}
        assert again.rows.list_keys() == rows.list_keys()
        assert again.rows.file([f"key {n}" for n in range(COLUMNS)]) == row
        assert again.judge([[f"key {n}" for n in range(COLUMNS)]]) == table.judge(
            [[f"key {n}" for n in range(COLUMNS)]]
        )
