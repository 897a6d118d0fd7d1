"""What was acknowledged is there, whatever happens to the process and whoever else writes."""

import random
import subprocess
import sys
import textwrap
import time

import pytest

from tacit.memory import ExperienceLibrary, Item

WRITER = textwrap.dedent(
    """
    import sys
    from tacit.memory import Diagnosis, ExperienceLibrary, Item, State, Step, Trajectory

    path, who, most = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with ExperienceLibrary.open(path) as library:
        for n in range(most):
            see = State(f"{who} sees box {n} of {'abcdefg'[n % 7]}", task="look")
            step = Step(see, f"open box {n}", see, Diagnosis(True), 1.0, keys=("*", "open {1}", f"open {who} {n}"))
            print("episode", library.record(Trajectory("look", (step, step), True)), flush=True)
            print("item", library.add(Item("insight", f"{who} learnt {n}")).item_id, flush=True)
    """
)


def writer(path, who, most):
    """A process that records and adds, and prints each id when it was acknowledged."""
    command = [sys.executable, "-c", WRITER, str(path), who, str(most)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def found(library, lines):
    """How many of the acknowledged ids the library has."""
    count = 0
    for what, ref in (line.split() for line in lines):
        if what == "episode":
            assert len(library.trajectory(ref).steps) == 2
        else:
            assert library.get(ref).status == "active"
        count += 1
    return count


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_killed_writer_loses_nothing_it_acknowledged(path, seed):
    """kill -9 at a random moment: every id that was printed is there, whole, and the library is sound."""
    process = writer(path, "one", 100_000)
    lines = [process.stdout.readline() for _ in range(random.Random(seed).randrange(2, 60))]
    time.sleep(random.Random(seed).random() / 200)
    process.kill()
    rest = process.communicate()[0]
    lines += [line for line in rest.splitlines(keepends=True) if line.endswith("\n")]
    with ExperienceLibrary.open(path) as library:
        assert found(library, lines) == len(lines) >= 2
        assert library.verify() == []
        library.add(Item("insight", "life goes on"))


def test_processes_write_while_another_recalls(path):
    """Three writers, one reader: all writes are there, nobody is turned away, the reader sees them come."""
    ExperienceLibrary.open(path).close()
    writers = [writer(path, who, 12) for who in ("ann", "bob", "cy")]
    seen = [0]
    with ExperienceLibrary.open(path) as library:
        while any(process.poll() is None for process in writers):
            seen.append(library.episodes)
            library.recall("ann sees box 1 of a", k=3)
        outputs = [process.communicate() for process in writers]
        assert [errors for _, errors in outputs] == [""] * 3
        assert seen == sorted(seen)
        assert library.episodes == 36
        assert len(library._caught_up().values.cells["*"].steps) > 0
        assert library._caught_up().values.cells["*"].n == 72
        assert sum(found(library, lines.splitlines()) for lines, _ in outputs) == 72
        assert library.verify() == []


def test_the_change_log_only_grows(path):
    """Two writers, one sequence without a step back."""
    with ExperienceLibrary.open(path) as one, ExperienceLibrary.open(path) as other:
        for number in range(5):
            one.add(Item("insight", f"one {number}"))
            other.add(Item("insight", f"other {number}"))
        numbers = [seq for (seq,) in one._store.rows("SELECT seq FROM changes ORDER BY rowid")]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 10
