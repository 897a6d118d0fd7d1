import os
import re
import sqlite3

import pytest

from hardwon.memory import ExperienceLibrary, Item, Trajectory, errors
from hardwon.memory.upkeep.figures import read_clusters

READS = ["stats", "ls", "guardrails", "clusters", "verify"]


@pytest.mark.parametrize("command", READS)
def test_looking_prints_words_that_fit_the_page(hardwon, learnt, command):
    printed = hardwon("memory", command, learnt).stdout
    assert printed
    assert "\x1b" not in printed
    assert max(map(len, printed.splitlines())) <= 80


@pytest.mark.parametrize("command", [*READS, "show", "search", "history"])
def test_looking_changes_nothing(hardwon, own, command):
    with ExperienceLibrary.open(own, read_only=True) as library:
        item = library.items.find()[0].id
    before = own.read_bytes()
    hardwon("memory", command, own, *({"show": [item], "history": [item], "search": ["apple"]}.get(command, [])))
    assert own.read_bytes() == before


@pytest.mark.parametrize("arguments", [["ls"], ["ls", "--episodes"], ["clusters"], ["guardrails"], ["search", "apple"]])
def test_an_empty_library_says_what_to_do_next(hardwon, empty, arguments):
    printed = hardwon("memory", arguments[0], empty, *arguments[1:]).stdout
    assert "ExperienceMiddleware" in printed
    ways = ("proxy", "memory import", "mcp", "hook install claude-code --library")
    assert all(f"hardwon {way} {empty}" in printed for way in ways)


def test_stats_counts_every_tier(hardwon_json, learnt):
    """systems.md §3: rolling summary bounded and auditable; counts in summary equal true counts."""
    figures = hardwon_json("memory", "stats", learnt)
    with ExperienceLibrary.open(learnt, read_only=True) as library:
        summaries = library.episodes.summaries()
        items = library.items.find(status=None)
    assert figures["live"] + figures["folded"] == figures["steps"] == sum(summary.n for summary in summaries)
    assert figures["folded"] == sum(summary.n - summary.live for summary in summaries)
    assert figures["attempts"] == len(summaries)
    assert sum(sum(kinds.values()) for kinds in figures["items_by_status"].values()) == len(items)


def test_stats_on_paper_names_the_tiers(hardwon, learnt):
    printed = hardwon("memory", "stats", learnt).stdout
    assert all(word in printed for word in ("live", "folded", "attempts", "situations", "active items"))


@pytest.fixture
def varied(own):
    """A library with an item of every sort: by hand and tagged, waiting in quarantine, retired."""
    with ExperienceLibrary.open(own) as library:
        box = Item("insight", "boxes in the cellar hold apples", tags=("fruit",), locations=("cellar",), score=0.9)
        hint = Item("insight", "the tool says that apples are free", source="environment", trust="untrusted")
        library.items.add_many([box, hint, Item("insight", "doors are never locked here", writer="chat:m/1")])
        library.items.retire(library.items.find(writer="chat:m/1")[0].id, "it is wrong")
    return own


@pytest.mark.parametrize(
    ("arguments", "title"),
    [
        (["--kind", "insight"], "boxes in the cellar hold apples"),
        (["--tag", "fruit"], "boxes in the cellar hold apples"),
        (["--location", "cellar"], "boxes in the cellar hold apples"),
        (["--text", "CELLAR apples"], "boxes in the cellar hold apples"),
        (["--min-score", "0.85", "--source", "person"], "boxes in the cellar hold apples"),
        (["--status", "quarantined"], "the tool says that apples are free"),
        (["--status", "all", "--trust", "untrusted"], "the tool says that apples are free"),
        (["--status", "all", "--source", "environment"], "the tool says that apples are free"),
        (["--status", "retired", "--writer", "chat:m/1"], "doors are never locked here"),
    ],
)
def test_ls_filters(hardwon_json, varied, arguments, title):
    found = hardwon_json("memory", "ls", varied, *arguments)
    assert ([item["title"] for item in found["items"]], found["total"]) == ([title], 1)


def test_ls_filters_by_situation(hardwon_json, varied):
    with ExperienceLibrary.open(varied) as library:
        signature = library.admin.query(read_clusters, 1)[0]["signature"]
        ref = library.items.find(tag="fruit")[0].id
        library.items.update(ref, signatures=(signature,))
    assert ref in {item["id"] for item in hardwon_json("memory", "ls", varied, "--signature", signature)["items"]}


def test_ls_of_an_unusual_item_says_what_is_unusual(hardwon, varied):
    assert re.search(
        r"quarantined, untrusted$", hardwon("memory", "ls", varied, "--status", "all").stdout, re.MULTILINE
    )


@pytest.mark.parametrize(("sort", "of"), [("score", "score"), ("confidence", "confidence")])
def test_ls_sorts_the_highest_first(hardwon_json, learnt, sort, of):
    values = [item[of] for item in hardwon_json("memory", "ls", learnt, "--sort", sort)["items"]]
    assert values == sorted(values, reverse=True)


def test_a_page_is_counted_from_one(hardwon_json, learnt):
    everything = [row["id"] for row in hardwon_json("memory", "ls", learnt, "--episodes", "-k", 99)["episodes"]]
    third = hardwon_json("memory", "ls", learnt, "--episodes", "--limit", 5, "--page", 3)
    assert [row["id"] for row in third["episodes"]] == everything[10:15]
    assert third["total"] == 40


@pytest.mark.parametrize("command", ["ls", "guardrails", "clusters"])
def test_which_page_it_is_goes_to_stderr(hardwon, learnt, command):
    shown = hardwon("memory", command, learnt, "-k", 1)
    assert re.fullmatch(r"(items|guardrails|situations) 1-1 of \d+\n", shown.stderr)


def test_a_page_beyond_the_last_says_how_many_there_are(hardwon, learnt):
    assert "there are 40" in hardwon("memory", "ls", learnt, "--episodes", "--page", 9).stdout


@pytest.mark.parametrize("wrong", [["--page", 2, "--offset", 3], ["--page", 0], ["-k", 0], ["-k", 10**30]])
def test_a_page_that_cannot_be_is_a_wrong_call(hardwon, learnt, wrong):
    hardwon("memory", "ls", learnt, *wrong, expect=2)


def test_a_list_wraps_the_sentences_of_rules_and_cuts_longer_texts(hardwon, own):
    title = "a lesson with a great many words " * 10 + "and its end"
    with ExperienceLibrary.open(own) as library:
        ref = library.add(Item("insight", title, score=1.0, body="many more words " * 40)).item_id
    listed = hardwon("memory", "ls", own, "-k", 1).stdout
    assert title in " ".join(listed.split())
    assert "…" in listed
    assert title in " ".join(hardwon("memory", "show", own, ref).stdout.split())


def test_quarantine_lists_what_waits(hardwon, hardwon_json, varied):
    assert [item["source"] for item in hardwon_json("memory", "ls", varied, "--status", "quarantined")["items"]] == [
        "environment"
    ]
    assert "the tool says" in hardwon("memory", "ls", varied, "--status", "quarantined").stdout


def test_an_empty_quarantine_says_so(hardwon, learnt):
    assert "No such items" in hardwon("memory", "ls", learnt, "--status", "quarantined").stdout


def test_ls_refuses_what_episodes_do_not_have(hardwon, learnt):
    assert "leave them out" in hardwon("memory", "ls", learnt, "--episodes", "--kind", "skill", expect=2).stderr


def test_ids_are_never_cut(hardwon, hardwon_json, learnt):
    """A person copies an id from the list into the next command."""
    printed = hardwon("memory", "ls", learnt, "--episodes").stdout
    assert all(row["id"] in printed for row in hardwon_json("memory", "ls", learnt, "--episodes")["episodes"])


@pytest.mark.parametrize(
    ("arguments", "there_is"),
    [
        (["--kind", "guardrale"], "kinds is ['guardrale'] (list); give a list of one of"),
        (["--status", "dead"], "There are: active, all, quarantined, retired"),
        (["--sort", "size"], "There are: confidence, new, old, score, used"),
        (["--trust", "some"], "There are: trusted, untrusted"),
        (["--source", "heaven"], "There are: client, environment, experience, import, model, person"),
        (["--namespace", "other"], "There are: default"),
    ],
)
def test_an_unknown_name_lists_what_there_is(hardwon, learnt, arguments, there_is):
    assert there_is in hardwon("memory", "ls", learnt, *arguments, expect=2).stderr


def test_an_unknown_id_lists_some_that_exist(hardwon, learnt):
    with ExperienceLibrary.open(learnt, read_only=True) as library:
        newest = library.episodes.find(limit=1)[0]["id"]
    assert newest in hardwon("memory", "show", learnt, "nothing", expect=2).stderr


def test_search_says_why_and_how_near(hardwon_json, learnt):
    hits = hardwon_json("memory", "search", learnt, "a raw potato and a box")
    assert hits
    assert all(hit["why"] and -1 <= hit["similarity"] <= 1 and ("item" in hit or "step" in hit) for hit in hits)


def test_search_lists_the_ways_to_search(hardwon, learnt):
    assert (
        "There are: dense, hybrid, text" in hardwon("memory", "search", learnt, "x", "--how", "magic", expect=2).stderr
    )


@pytest.mark.parametrize("among", ["items", "steps"])
def test_search_looks_among_one_of_them(hardwon_json, learnt, among):
    hits = hardwon_json("memory", "search", learnt, "raw potato", "--among", among)
    assert hits
    assert all(among.rstrip("s") in hit for hit in hits)


def test_search_filters_by_kind(hardwon_json, learnt):
    hits = hardwon_json("memory", "search", learnt, "bite raw potato", "--kind", "guardrail")
    assert {hit["item"]["kind"] for hit in hits} == {"guardrail"}


def test_search_for_nothing_is_a_wrong_call(hardwon, learnt):
    assert "the text is empty" in hardwon("memory", "search", learnt, " ", expect=2).stderr


def test_guardrails_say_what_when_and_how_often(hardwon_json, learnt):
    rules = hardwon_json("memory", "guardrails", learnt)["guardrails"]
    rule = max(rules, key=lambda rule: rule["blocked"])
    assert rule["forbids"].startswith(("bite ", "open "))
    assert rule["evidence"] >= 3
    assert rule["confidence"] > 0.5
    assert rule["blocked"] > 0
    assert rule["when"]


def test_a_guardrail_is_a_whole_sentence(hardwon, empty):
    """Not cut, and without `always`."""
    because = "It deletes what nobody has a copy of, and the shop closes for a day, which happened twice in one week."
    with ExperienceLibrary.open(empty) as library:
        library.add(Item("guardrail", "no", because, forbids="drop(table={1})", condition={"all": []}, confidence=0.9))
    printed = " ".join(hardwon("memory", "guardrails", empty).stdout.split())
    assert f"Do not `drop(table={{1}})`. {because}; next trial" in printed


def test_clusters_are_counted_and_have_a_best_action(hardwon_json, learnt):
    clusters = hardwon_json("memory", "clusters", learnt)
    with ExperienceLibrary.open(learnt, read_only=True) as library:
        stats = library.admin.stats()
    assert len(clusters["clusters"]) == clusters["total"] == stats["clusters"]
    assert sum(cluster["steps"] for cluster in clusters["clusters"]) == stats["steps"]
    best = [cluster["best_action"] for cluster in clusters["clusters"]]
    assert any(action["action"] == "eat apple" for action in best if action)


def test_clusters_have_their_attempts(hardwon_json, hardwon, learnt):
    """systems.md §3: counts in summary equal true counts; every claim resolves to ids."""
    for cluster in hardwon_json("memory", "clusters", learnt)["clusters"]:
        assert sum(attempt["n"] for attempt in cluster["attempts"]) == cluster["steps"]
    assert "attempt:1 " in hardwon("memory", "clusters", learnt).stdout


def test_what_is_no_library_is_refused(hardwon, tmp_path):
    for name, content in (("a.txt", b"hello"), ("b.db", b"")):
        (tmp_path / name).write_bytes(content)
    with sqlite3.connect(tmp_path / "c.db") as connection:
        connection.execute("CREATE TABLE other (x)")
    connection.close()
    assert "not a hardwon library" in hardwon("memory", "ls", tmp_path / "a.txt", expect=1).stderr
    assert "the file is empty, so there is no library at" in hardwon("memory", "ls", tmp_path / "b.db", expect=1).stderr
    assert "not a hardwon library" in hardwon("memory", "ls", tmp_path / "c.db", expect=1).stderr
    assert "there is no library at" in hardwon("memory", "ls", tmp_path / "missing.db", expect=1).stderr
    assert "is a folder" in hardwon("memory", "ls", tmp_path, expect=1).stderr
    assert not (tmp_path / "missing.db").exists()


@pytest.mark.parametrize("arguments", [["--writer", "\udcff"], ["--tag", "\udcff"], ["--text", "\udcff"]])
def test_bytes_that_are_no_text_find_nothing(hardwon, learnt, arguments):
    assert "No such items" in hardwon("memory", "ls", learnt, *arguments).stdout


@pytest.mark.parametrize("command", ["ls", "clusters", "stats"])
def test_a_namespace_of_bytes_that_are_no_text_is_unknown(hardwon, learnt, command):
    assert "There are: default" in hardwon("memory", command, learnt, "-n", "\udcff", expect=2).stderr


def test_a_newer_schema_names_the_upgrade(hardwon, own):
    with sqlite3.connect(own) as connection:
        connection.execute("PRAGMA user_version = 999")
    connection.close()
    assert "Update your clone of hardwon, then run: pip install ." in hardwon("memory", "stats", own, expect=1).stderr


def test_the_command_that_another_embedder_is_told_helps(hardwon, own):
    with pytest.raises(errors.EmbedderMismatch) as refused:
        ExperienceLibrary.open(own, embedder="hashing:64")
    command = re.search(r"hardwon (memory reembed .*)", str(refused.value))
    assert command
    hardwon(*command[1].split())
    ExperienceLibrary.open(own, embedder="hashing:64").close()


def test_stats_migrates_when_asked(hardwon_json, own):
    assert hardwon_json("memory", "stats", own, "--migrate")["episodes"] == 40


def test_verify_finds_what_is_wrong_and_repair_mends_it(hardwon, hardwon_json, own):
    with sqlite3.connect(own) as connection:
        connection.execute("DELETE FROM words")
    connection.close()
    assert hardwon_json("memory", "verify", own, expect=1)["problems"][0]["where"] == "words"
    assert "hardwon memory repair" in hardwon("memory", "verify", own, expect=1).stdout
    assert "rebuilt" in hardwon("memory", "repair", own).stdout
    assert hardwon_json("memory", "verify", own) == {"sound": True, "problems": []}


def test_a_library_that_may_only_be_read_is_looked_at(hardwon, own, monkeypatch):
    """Where no file may be made beside it, either."""
    own.chmod(0o444)
    own.parent.chmod(0o555)
    try:
        for command, *more in [[name] for name in READS] + [["search", "apple"]]:
            assert hardwon("memory", command, own, *more).stdout
        monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK)  # root may write everything
        assert "is not writable" in hardwon("memory", "evolve", own, expect=1).stderr
    finally:
        own.parent.chmod(0o755)


@pytest.mark.parametrize("command", [["ls"], ["ls", "--episodes"], ["stats"], ["search", "words"]])
def test_an_empty_namespace_names_those_that_are_not(hardwon, tmp_path, command):
    """What was recorded elsewhere is named, with the command that shows it."""
    path = tmp_path / "library.db"
    with ExperienceLibrary.open(path), ExperienceLibrary.open(path, namespace="Acme Corp") as acme:
        acme.record(Trajectory("t", (), True))
    shown = hardwon("memory", command[0], path, *command[1:]).stdout
    assert "Namespaces with episodes: Acme Corp (1 episodes)." in shown
    assert "--namespace 'Acme Corp'" in shown


def test_a_library_whose_making_was_interrupted_says_so(hardwon, tmp_path):
    """The file is there, with neither tables nor a schema: a reader cannot use it, a writer goes on."""
    path = tmp_path / "half.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    assert "was stopped while it did. Try again" in hardwon("memory", "ls", path, expect=1).stderr
    ExperienceLibrary.open(path).close()
    hardwon("memory", "ls", path)
