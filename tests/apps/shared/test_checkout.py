"""Items as files: a checkout changes nothing, and a commit writes what a person changed and nothing else."""

import os
import shutil
from dataclasses import replace

import pytest
import yaml
from tests.memory.upkeep.digest import compute_digest
from tests.memory.writers import restore

from hardwon.apps.shared.checkout import MANIFEST, check_out, commit
from hardwon.apps.shared.item_files import parse_file, read_values, render_file
from hardwon.memory import Item
from hardwon.memory.errors import ConfigError
from hardwon.trainers.config.loading import load
from hardwon.trainers.config.yaml_bounds import check_yaml

TITLE = "Check the order before you refund it"
ODD = [
    Item("strategy", TITLE, "Refunds of unpaid orders fail.", "When a customer asks", tags=("refund", "order")),
    Item("warning", "yes: [a] # b", "---\n\n# Title\n---\nkey: value\n", id="x/../y", when_not_to_use="2024-01-01"),
    Item(
        "guardrail", "Do not eat raw meat\nor fish", "Zeile: \u00fc \u2028 \x0b end  \r\nnext", forbids="eat {1}",
        condition={"text": "raw"}, ttl=9, pinned=True,
    ),
    Item("remedy", "null", repairs="no_effect", steps=("wait", "- try {1}: now"), scope="suffix", body="x\n\n\n"),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "lessons"


@pytest.fixture
def items(library):
    return [library.items.get(library.add(item).item_id) for item in ODD]


def find(folder, item):
    return next(path for path in folder.glob("*/*.md") if f"id: {item.id}\n" in path.read_text(encoding="utf-8"))


def edit(folder, item, old, new):
    path = find(folder, item)
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def list_changes(changes):
    return [(change.what, change.item) for change in changes]


def test_a_checkout_and_a_commit_without_a_change_do_nothing(library, folder, items):
    check_out(library, folder, "test.db")
    digest = library.admin.query(compute_digest)
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert commit(library, folder, why="") == []
    check_out(library, folder, "test.db")
    assert library.admin.query(compute_digest) == digest
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == files
    for path in folder.glob("*/*.md"):  # an editor of another system
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"))
    assert commit(library, folder, why="") == []


@pytest.mark.parametrize("item", ODD)
def test_a_file_holds_every_editable_field(item):
    item = replace(item, id=item.id or "st-1")
    parsed = parse_file(render_file(item), "a.md")
    assert (parsed.id, parsed.kind, parsed.values) == (item.id, item.kind, read_values(item))


def test_an_edited_file_is_a_new_version_in_the_history(library, folder, items):
    check_out(library, folder, "test.db")
    edit(folder, items[0], "Refunds of unpaid orders fail.", "Ask for the receipt first.")
    assert list_changes(commit(library, folder, why="", dry_run=True)) == [("changed", items[0].id)]
    assert library.items.get(items[0].id) == items[0]
    (change,) = commit(library, folder, why="")
    assert (change.what, change.detail) == ("changed", "body")
    item = library.items.get(items[0].id)
    assert (item.body, item.version, item.writer) == ("Ask for the receipt first.", items[0].version + 1, "user")
    assert library.items.undo(item.id).body == items[0].body
    assert list_changes(commit(library, folder, why="")) == [("older", items[0].id)]


def test_a_new_file_becomes_an_item_with_a_file_of_its_id(library, folder, items):
    check_out(library, folder, "test.db")
    new = folder / "strategy" / "my note.md"
    new.write_text("---\nkind: strategy\ntitle: Weigh the parcel before you ship it\n---\nScales stand at the door.\n")
    assert list_changes(commit(library, folder, why="", dry_run=True)) == [("new", "")]
    (change,) = commit(library, folder, why="")
    item = library.items.get(change.item)
    assert (item.title, item.body, item.source) == (
        "Weigh the parcel before you ship it", "Scales stand at the door.", "person",
    )  # fmt: skip
    assert not new.exists()
    assert find(folder, item)
    assert commit(library, folder, why="") == []


def test_the_curator_judges_a_new_file(library, folder, items):
    check_out(library, folder, "test.db")
    (folder / "strategy" / "new.md").write_text("---\nkind: strategy\ntitle: Be careful and try again\n---\n")
    (change,) = commit(library, folder, why="")
    assert change.what == "rejected"
    assert "generic" in change.detail


def test_a_deleted_file_retires_its_item(library, folder, items):
    check_out(library, folder, "test.db")
    find(folder, items[0]).unlink()
    assert list_changes(commit(library, folder, why="outdated", dry_run=True)) == [("retired", items[0].id)]
    commit(library, folder, why="outdated")
    assert library.items.get(items[0].id).status == "retired"
    assert library.items.history(items[0].id)[-1]["detail"]["why"] == "outdated"
    assert commit(library, folder, why="") == []


def test_an_item_that_the_library_changed_is_a_conflict_and_stays(library, folder, items):
    check_out(library, folder, "test.db")
    edit(folder, items[0], "Refunds of unpaid", "All refunds of unpaid")
    find(folder, items[1]).unlink()
    for item in items[:2]:
        library.items.update(item.id, body="the library knows better")
    edit(folder, items[2], "eat {1}", "bite {1}")
    changes = commit(library, folder, why="")
    assert sorted(list_changes(changes)) == sorted(
        [("conflict", items[0].id), ("conflict", items[1].id), ("changed", items[2].id)]
    )
    assert all("changed" in change.detail for change in changes if change.what == "conflict")
    assert [library.items.get(item.id).body for item in items[:2]] == ["the library knows better"] * 2
    assert library.items.get(items[1].id).status == "active"
    assert library.items.get(items[2].id).forbids == "bite {1}"


def test_an_unedited_file_of_a_changed_item_is_older_and_a_restored_one_is_committed(library, folder, items):
    check_out(library, folder, "test.db")
    manifest, old = (folder / MANIFEST).read_bytes(), find(folder, items[0]).read_bytes()
    edit(folder, items[0], TITLE, "Look at the order first")
    commit(library, folder, why="")
    newer = (folder / MANIFEST).read_bytes()
    find(folder, items[0]).write_bytes(old)
    (folder / MANIFEST).write_bytes(manifest)  # as `git revert` does
    assert list_changes(commit(library, folder, why="")) == [("older", items[0].id)]
    (folder / MANIFEST).write_bytes(newer)
    assert list_changes(commit(library, folder, why="")) == [("changed", items[0].id)]
    assert library.items.get(items[0].id).title == TITLE


def test_a_restored_file_of_a_retired_item_names_the_command_that_brings_it_back(library, folder, items):
    check_out(library, folder, "test.db")
    path, text = find(folder, items[0]), find(folder, items[0]).read_bytes()
    path.unlink()
    commit(library, folder, why="")
    path.write_bytes(text)
    (change,) = commit(library, folder, why="")
    assert (change.what, "hardwon memory undo LIBRARY" in change.detail) == ("conflict", True)


def test_figures_that_move_by_themselves_are_no_conflict(library, folder, items):
    check_out(library, folder, "test.db")
    library.items.update(items[0].id, score=0.9)
    edit(folder, items[0], "Refunds of unpaid", "All refunds of unpaid")
    assert list_changes(commit(library, folder, why="")) == [("changed", items[0].id)]
    assert library.items.get(items[0].id).score == 0.9


def test_a_checkout_keeps_edits_unless_forced(library, folder, items):
    check_out(library, folder, "test.db")
    edit(folder, items[0], "Refunds of unpaid", "All refunds of unpaid")
    with pytest.raises(ConfigError, match="would be overwritten"):
        check_out(library, folder, "test.db")
    check_out(library, folder, "test.db", force=True)
    assert commit(library, folder, why="") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: strategy\n", r"strategy/new\.md:1: .* does not begin"),
        ("---\nkind: strategy\n", r"new\.md:1: .* no end"),
        ("---\nkind: strategy\ntitle: [a\n---\n", r"new\.md:\d: "),
        ("---\nkind: strategy\ntitle: Weigh the parcel\ncolor: red\n---\n", r"new\.md:4: 'color' is not a field"),
        ("---\nkind: strategy\ntitle: Weigh the parcel\non: red\n---\n", r"new\.md:2: 'True' is not a field"),
        ("---\nkind: strategy\ntitle: Weigh the parcel\n~: red\n---\n", r"new\.md:2: 'None' is not a field"),
        ("---\nkind: strategy\ntitle: 5\n---\n", r"new\.md:3: item title is 5"),
        ("---\nkind: strategy\ntitle: 2024-01-01\n---\n", r"new\.md:3: "),
        ("---\nkind: strategy\n---\nbody\n", r"new\.md:2: .* no title"),
        ("---\ntitle: Weigh the parcel\n---\n", r"new\.md:2: .* no kind"),
        ("---\nkind: idea\ntitle: Weigh the parcel\n---\n", r"new\.md:2: .*idea"),
        ("---\nkind: strategy\ntitle: a\ntitle: b\n---\n", r"new\.md:4: 'title' stands there twice"),
        ("---\nkind: guardrail\ntitle: Do not eat\ncondition: {wrong: 1}\nforbids: eat\n---\n", r"new\.md:4: "),
        ("---\nkind: strategy\ntitle: a\npinned: 1\n---\n", r"new\.md:4: pinned is 1"),
    ],
)
def test_malformed_front_matter_names_file_and_line(library, folder, items, text, message):
    check_out(library, folder, "test.db")
    edit(folder, items[0], "Refunds of unpaid", "All refunds of unpaid")
    (folder / "strategy" / "new.md").write_text(text)
    with pytest.raises(ConfigError, match=message):
        commit(library, folder, why="")
    assert library.items.get(items[0].id) == items[0]  # nothing was committed


def test_two_files_with_one_id_are_refused(library, folder, items):
    check_out(library, folder, "test.db")
    path = find(folder, items[0])
    path.with_name("copy.md").write_bytes(path.read_bytes())
    with pytest.raises(ConfigError, match="has the id"):
        commit(library, folder, why="")


def test_a_folder_that_is_no_checkout_is_refused(library, folder, items):
    folder.mkdir()
    with pytest.raises(ConfigError, match="is no checkout"):
        commit(library, folder, why="")
    check_out(library, folder, "test.db")
    (folder / MANIFEST).write_text("{")
    with pytest.raises(ConfigError, match="is damaged"):
        commit(library, folder, why="")


def test_the_order_of_files_and_fields_is_stable(library, folder, items):
    check_out(library, folder, "test.db")
    before = (folder / MANIFEST).read_text().splitlines()
    library.items.update(items[0].id, title="Check the order twice before you refund it")
    check_out(library, folder, "test.db")
    after = (folder / MANIFEST).read_text().splitlines()
    assert sum(old != new for old, new in zip(before, after, strict=True)) == 1
    assert find(folder, items[0]).name == f"{items[0].id}.md"


@pytest.mark.parametrize(
    "name", ["refunds.md", "strategy/refunds.md", "strategy/more/refunds.md", "strategy/refunds.txt", ".old/refunds.md"]
)
def test_a_file_under_another_name_is_named_and_its_item_stays(library, folder, items, name):
    check_out(library, folder, "test.db")
    edit(folder, items[1], "Title", "Heading")
    path = find(folder, items[0])
    (folder / name).parent.mkdir(exist_ok=True)
    path.rename(folder / name)
    digest = library.admin.query(compute_digest)
    for attempt in (lambda: commit(library, folder, why=""), lambda: check_out(library, folder, "test.db")):
        with pytest.raises(ConfigError, match=f"{name} is strategy/{items[0].id}.md under another name. Rename it to"):
            attempt()
    assert library.admin.query(compute_digest) == digest
    (folder / name).unlink()
    assert ("retired", items[0].id) in list_changes(commit(library, folder, why=""))


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("title: Check", "<<<<<<< HEAD\ntitle: Check\n=======\ntitle: Weigh\n>>>>>>> main\n#", 4),
        ("Refunds", "<<<<<<< HEAD\nRefunds\n=======\nAll refunds\n>>>>>>> main\n", 12),
    ],
)
def test_conflict_markers_of_git_stop_a_commit(library, folder, items, old, new, line):
    check_out(library, folder, "test.db")
    edit(folder, items[1], "Title", "Heading")
    edit(folder, items[0], old, new)
    digest = library.admin.query(compute_digest)
    with pytest.raises(ConfigError, match=rf"{items[0].id}\.md:{line}: git left conflict markers here. Resolve"):
        commit(library, folder, why="")
    assert library.admin.query(compute_digest) == digest


def test_markers_that_an_item_has_in_the_library_are_text(library, folder, items):
    library.items.update(items[0].id, body="<<<<<<< HEAD\na\n=======\nb\n>>>>>>> main\nmeans a conflict")
    check_out(library, folder, "test.db")
    assert commit(library, folder, why="") == []


@pytest.mark.parametrize("new", ["", "id: mine\n"])
def test_a_file_that_lost_its_id_does_not_retire_its_item(library, folder, items, new):
    check_out(library, folder, "test.db")
    edit(folder, items[0], f"id: {items[0].id}\n", new)
    with pytest.raises(ConfigError, match=rf"{items[0].id}\.md:2: the id was .* at the checkout. Write it"):
        commit(library, folder, why="")
    assert library.items.get(items[0].id) == items[0]


def test_a_new_file_that_equals_a_deleted_one_keeps_the_item(library, folder, items):
    check_out(library, folder, "test.db")
    path = find(folder, items[0])
    path.with_name("new.md").write_text(path.read_text().replace(f"id: {items[0].id}\n", ""))
    path.unlink()
    assert list_changes(commit(library, folder, why="")) == [("new", items[0].id)]
    assert library.items.get(items[0].id).status == "active"


def test_another_kind_is_a_conflict_that_names_the_old_one(library, folder, items):
    check_out(library, folder, "test.db")
    edit(folder, items[0], "kind: strategy", "kind: warning")
    (change,) = commit(library, folder, why="")
    assert (change.what, change.item) == ("conflict", items[0].id)
    assert "Write `kind: strategy`" in change.detail


def test_a_file_that_is_not_utf_8_names_the_next_step(library, folder, items):
    check_out(library, folder, "test.db")
    path = find(folder, items[0])
    path.write_text(path.read_text() + "é", encoding="latin-1")
    with pytest.raises(ConfigError, match=rf"{items[0].id}\.md:1: the file is not UTF-8 .* Save it as UTF-8"):
        commit(library, folder, why="")


def test_a_file_has_no_control_characters_and_keeps_those_of_the_library(library, folder):
    """`cat` of a file must not erase a terminal; an edit of the title leaves the body as it is recorded."""
    body = "Wait.\n\x1b[2J\x1b]52;c;cm0=\x07 done"
    item = library.items.get(library.add(Item("warning", TITLE + "\x1b[1m", body)).item_id)
    check_out(library, folder, "test.db")
    text = find(folder, item).read_text(encoding="utf-8")
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\\x1b[2J" in text
    assert commit(library, folder, why="") == []
    edit(folder, item, "kind: warning\n", "kind: warning\ntags: [screen]\n")
    assert list_changes(commit(library, folder, why="")) == [("changed", item.id)]
    assert library.items.get(item.id).body == body


# ---- links, names and depth


@pytest.mark.parametrize("kind", ["link to a file", "link to nothing", "hard link", "link to a folder", "pipe"])
def test_a_forced_checkout_writes_through_no_link(library, folder, items, tmp_path, kind):
    check_out(library, folder, "test.db")
    outside, path = tmp_path / "outside", find(folder, items[0])
    outside.mkdir()
    (outside / path.name).write_text("mine")
    if kind == "link to a folder":
        shutil.rmtree(path.parent)
        path.parent.symlink_to(outside)
        with pytest.raises(ConfigError, match="is a link"):
            check_out(library, folder, "test.db", force=True)
        path.parent.unlink()
    else:
        path.unlink()
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "hard link":
            path.hardlink_to(outside / path.name)
        else:
            path.symlink_to(outside / (path.name if kind == "link to a file" else "new"))
    check_out(library, folder, "test.db", force=True)
    assert [file.name for file in outside.iterdir()] == [path.name]
    assert (outside / path.name).read_text() == "mine"
    assert find(folder, items[0]) == path
    assert not path.is_symlink()


def test_the_list_of_a_folder_is_not_written_through_a_link(library, folder, items, tmp_path):
    folder.mkdir()
    (tmp_path / "mine").write_text("{}")
    (folder / MANIFEST).symlink_to(tmp_path / "nothing")
    check_out(library, folder, "test.db", force=True)
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("file", ["../out.md", "/tmp/out.md", "strategy/../../out.md", "strategy//out.md", "."])
def test_a_list_does_not_delete_outside_of_the_folder(library, folder, items, tmp_path, file):
    check_out(library, folder, "test.db")
    (tmp_path / "out.md").write_text("mine")
    manifest = folder / MANIFEST
    manifest.write_text(manifest.read_text().replace("strategy/" + find(folder, items[0]).name, file))
    with pytest.raises(ConfigError, match="leads out of"):
        check_out(library, folder, "test.db", force=True)
    assert (tmp_path / "out.md").read_text() == "mine"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["strategy/new.md", MANIFEST])
def test_a_pipe_is_not_waited_for(library, folder, items, name):
    """Neither a commit nor a checkout hangs because of a pipe in the folder."""
    check_out(library, folder, "lib.db")
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(ConfigError, match="is no file"):
        commit(library, folder, why="x")
    if name == MANIFEST:
        with pytest.raises(ConfigError, match="is no file"):
            check_out(library, folder, "lib.db", force=True)


def test_an_endless_file_is_not_read(library, folder, items):
    """A file larger than any item is named, before it takes memory."""
    check_out(library, folder, "lib.db")
    with (folder / "strategy/new.md").open("wb") as file:
        file.truncate(50_000_000_000)
    with pytest.raises(ConfigError, match=r"strategy/new\.md:1: this is no file of at most"):
        commit(library, folder, why="x")


def test_a_link_is_not_committed(library, folder, items, tmp_path):
    check_out(library, folder, "test.db")
    path = find(folder, items[0])
    (tmp_path / "secret.md").write_text(path.read_text().replace(f"id: {items[0].id}\n", ""))
    (path.parent / "new.md").symlink_to(tmp_path / "secret.md")
    with pytest.raises(ConfigError, match=r"new\.md:1: this is a link"):
        commit(library, folder, why="")


NAMES = [
    "x" * 256,
    "/" * 200,
    "é" * 120,
    "e\u0301" * 80,
    "con",
    "nul.a",
    "COM1",
    "St-1",
    "st-1",
    "a/b",
    "a\\b",
    "..x",
    "C:x",
]


def test_any_id_has_a_file_of_its_own_on_any_system(library, folder):
    for number, ref in enumerate(NAMES):
        restore(library, Item("insight", f"title {number}", id=ref))
    check_out(library, folder, "test.db")
    names = [path.name for path in folder.glob("*/*.md")]
    assert len({name.casefold() for name in names}) == len(NAMES)
    assert max(len(name.encode()) for name in names) < 255
    assert {name.partition(".")[0].casefold() for name in names}.isdisjoint({"con", "nul", "com1"})
    assert commit(library, folder, why="") == []
    check_out(library, folder, "test.db")


DEEP = {
    "lists": "[" * 20_000,
    "mappings": "{a: " * 20_000,
    "both": "[{a: " * 10_000 + "}]" * 10_000,
    "blocks": "- " * 20_000 + "x",
    "keys": "? " * 20_000 + "x",
    "aliases": "[" + ", ".join(f"&a{n} [{f'*a{n - 1}, ' * 10}x]" for n in range(10)).replace("*a-1, ", "") + "]",
    "aliases of long text": "[&a " + "x" * 1_000 + ", *a" * 1_000 + "]",
    "merged": ", ".join(["{k: &a0 {x: 1}", *(f"k{n}: &a{n} {{<<: [{f'*a{n - 1}, ' * 10}]}}" for n in range(1, 10))])
    + "}",
    "aliases in each other": "[&a0 x, " + ", ".join(f"&a{n} [*a{n - 1}]" for n in range(1, 40)) + "]",
    "itself": "&a [*a]",
}


@pytest.mark.parametrize("name", DEEP)
def test_deep_yaml_is_refused_at_once(name, monkeypatch):
    """By the number of tokens that are read, not by time."""
    count = 0
    fetch = yaml.SafeLoader.fetch_more_tokens

    def counted(loader):
        nonlocal count
        count += 1
        return fetch(loader)

    monkeypatch.setattr(yaml.SafeLoader, "fetch_more_tokens", counted)
    with pytest.raises(ConfigError, match=r"a\.md:\d.* (levels|alias)"):
        parse_file(f"---\nid: x\nkind: insight\ntitle: t\ncondition:\n  {DEEP[name]}\n---\n", "a.md")
    assert count < 3_000  # the scanner looks 1,024 characters ahead


def test_settings_and_items_may_repeat_a_value_by_an_alias(tmp_path):
    """Also by merging mappings, as training configurations do."""
    path = tmp_path / "a.yaml"
    path.write_text("environment: {name: textworld}\nrun: &run\n  seed: &seed 7\n  groups: *seed\n  <<: {keep: 5}\n")
    run = load(path).run
    assert (run.seed, run.groups, run.keep) == (7, 7, 5)
    check_yaml("[&a [x], " + "*a, " * 1_000 + "]", path)
    item = "---\nid: x\nkind: insight\ntitle: &t task\nscope: *t\n---\n"
    assert parse_file(item, "a.md").values["scope"] == "task"


@pytest.mark.parametrize("name", DEEP)
def test_deep_settings_of_a_training_are_refused(name, tmp_path):
    (tmp_path / "a.yaml").write_text(
        f"run: {DEEP[name]}" if name not in ("blocks", "keys") else f"run:\n  {DEEP[name]}"
    )
    with pytest.raises(ConfigError, match=r"levels|alias"):
        load(tmp_path / "a.yaml")
    (tmp_path / "b.yaml").write_text("run:\n")
    with pytest.raises(ConfigError, match=r"levels|alias"):
        load(tmp_path / "b.yaml", [f"run.out={DEEP[name]}"])
