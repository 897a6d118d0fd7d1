import re
import sqlite3

import pytest

from tacit.memory import ExperienceLibrary, errors

READS = ["stats", "ls", "guardrails", "clusters", "verify"]


@pytest.mark.parametrize("command", READS)
def test_looking_prints_json(tacit_json, learnt, command):
    assert tacit_json("memory", command, learnt)


@pytest.mark.parametrize("command", READS)
def test_looking_prints_words_that_fit_the_page(tacit, learnt, command):
    printed = tacit("memory", command, learnt).stdout
    assert printed
    assert "\x1b" not in printed
    assert max(len(line.rstrip()) for line in printed.splitlines()) <= 100


@pytest.mark.parametrize("command", [*READS, "show", "search", "history"])
def test_looking_changes_nothing(tacit, own, command):
    with ExperienceLibrary.open(own, read_only=True) as library:
        item = library.items()[0].id
    before = own.read_bytes()
    tacit("memory", command, own, *({"show": [item], "history": [item], "search": ["apple"]}.get(command, [])))
    assert own.read_bytes() == before


@pytest.mark.parametrize("arguments", [["ls"], ["ls", "--episodes"], ["clusters"], ["guardrails"], ["search", "apple"]])
def test_an_empty_library_says_what_to_do_next(tacit, empty, arguments):
    printed = tacit("memory", arguments[0], empty, *arguments[1:]).stdout
    assert f"tacit run textworld --library {empty}" in printed


def test_stats_counts_episodes(tacit_json, learnt):
    figures = tacit_json("memory", "stats", learnt)
    assert figures["episodes"] == 40
    assert 0 < figures["successes"] <= 40


def test_ls_filters_by_kind(tacit_json, learnt):
    kinds = {item["kind"] for item in tacit_json("memory", "ls", learnt, "--kind", "guardrail")}
    assert kinds == {"guardrail"}


def test_ls_limits_and_skips(tacit_json, learnt):
    everything = [row["id"] for row in tacit_json("memory", "ls", learnt, "--episodes")]
    page = tacit_json("memory", "ls", learnt, "--episodes", "--limit", 3, "--offset", 2)
    assert [row["id"] for row in page] == everything[2:5]


def test_ls_refuses_what_episodes_do_not_have(tacit, learnt):
    assert "leave them out" in tacit("memory", "ls", learnt, "--episodes", "--kind", "skill", expect=2).stderr


def test_ids_are_never_cut(tacit, tacit_json, learnt):
    """A person copies an id from the list into the next command."""
    printed = tacit("memory", "ls", learnt, "--episodes").stdout
    assert all(row["id"] in printed for row in tacit_json("memory", "ls", learnt, "--episodes"))


@pytest.mark.parametrize(
    ("arguments", "there_is"),
    [
        (["--kind", "guardrale"], "Did you mean 'guardrail'? There are: guardrail, insight"),
        (["--status", "dead"], "There are: active, all, retired"),
        (["--sort", "size"], "There are: confidence, new, old, score"),
        (["--namespace", "other"], "There are: default"),
    ],
)
def test_an_unknown_name_lists_what_there_is(tacit, learnt, arguments, there_is):
    assert there_is in tacit("memory", "ls", learnt, *arguments, expect=2).stderr


def test_an_unknown_id_lists_some_that_exist(tacit, learnt):
    with ExperienceLibrary.open(learnt, read_only=True) as library:
        newest = library.trajectories(limit=1)[0]["id"]
    assert newest in tacit("memory", "show", learnt, "nothing", expect=2).stderr


def test_search_says_why_and_how_near(tacit_json, learnt):
    hits = tacit_json("memory", "search", learnt, "a raw potato and a box")
    assert hits
    assert all(hit["why"] and -1 <= hit["similarity"] <= 1 and ("item" in hit or "step" in hit) for hit in hits)


def test_search_lists_the_ways_to_search(tacit, learnt):
    assert "There are: dense, hybrid, text" in tacit("memory", "search", learnt, "x", "--how", "magic", expect=2).stderr


def test_guardrails_say_what_when_and_how_often(tacit_json, learnt):
    rules = tacit_json("memory", "guardrails", learnt)
    rule = max(rules, key=lambda rule: rule["blocked"])
    assert rule["forbids"].startswith("bite ")
    assert rule["evidence"] >= 4
    assert rule["confidence"] > 0.5
    assert rule["blocked"] > 0
    assert rule["when"]


def test_clusters_are_counted_and_have_a_best_action(tacit_json, learnt):
    clusters = tacit_json("memory", "clusters", learnt)
    with ExperienceLibrary.open(learnt, read_only=True) as library:
        stats = library.stats()
    assert len(clusters) == stats["clusters"]
    assert sum(cluster["steps"] for cluster in clusters) == stats["steps"]
    assert any(cluster["best_action"]["action"] == "eat apple" for cluster in clusters if cluster["best_action"])


def test_clusters_name_the_namespaces(tacit, learnt):
    assert "There are: default" in tacit("memory", "clusters", learnt, "-n", "other", expect=2).stderr


def test_what_is_no_library_is_refused(tacit, tmp_path):
    for name, content in (("a.txt", b"hello"), ("b.db", b"")):
        (tmp_path / name).write_bytes(content)
    with sqlite3.connect(tmp_path / "c.db") as connection:
        connection.execute("CREATE TABLE other (x)")
    connection.close()
    assert "not a tacit library" in tacit("memory", "ls", tmp_path / "a.txt", expect=1).stderr
    assert "not a tacit library" in tacit("memory", "ls", tmp_path / "c.db", expect=1).stderr
    assert "there is no library at" in tacit("memory", "ls", tmp_path / "missing.db", expect=1).stderr
    assert "is a folder" in tacit("memory", "ls", tmp_path, expect=1).stderr
    assert not (tmp_path / "missing.db").exists()


def test_a_newer_schema_names_the_upgrade(tacit, own):
    with sqlite3.connect(own) as connection:
        connection.execute("PRAGMA user_version = 999")
    connection.close()
    assert "pip install --upgrade tacit" in tacit("memory", "stats", own, expect=1).stderr


def test_the_command_that_another_embedder_is_told_helps(tacit, own):
    with pytest.raises(errors.EmbedderMismatch) as refused:
        ExperienceLibrary.open(own, embedder="hashing:64")
    command = re.search(r"tacit (memory reembed .*)", str(refused.value))
    assert command
    tacit(*command[1].split())
    ExperienceLibrary.open(own, embedder="hashing:64").close()


def test_stats_migrates_when_asked(tacit_json, own):
    assert tacit_json("memory", "stats", own, "--migrate")["episodes"] == 40


def test_verify_finds_what_is_wrong_and_repair_mends_it(tacit, tacit_json, own):
    with sqlite3.connect(own) as connection:
        connection.execute("DELETE FROM words")
    connection.close()
    assert tacit_json("memory", "verify", own, expect=1)["problems"][0]["where"] == "words"
    assert "tacit memory repair" in tacit("memory", "verify", own, expect=1).stdout
    assert "rebuilt" in tacit("memory", "repair", own).stdout
    assert tacit_json("memory", "verify", own) == {"sound": True, "problems": []}
