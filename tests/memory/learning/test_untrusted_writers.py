"""Untrusted writers: agreement counts credentials, and no number of them makes an item active."""

import pytest

from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.guardrails.conditions import guard_key
from hardwon.memory.learning.untrusted_writers import UntrustedWriters, find_unsupported
from hardwon.memory.situations.evidence import call_key
from hardwon.memory.storage.episodes import witness_of
from hardwon.memory.values.value_table import ValueTable
from hardwon.runtime.environments.calls import Call
from hardwon.runtime.integrations.tool_episode import ToolEpisode


def errand(library, name, *tools, failed=(), number=0):
    """Return an episode of tool calls, one after the other."""
    episode, calls = ToolEpisode(library, f"{name} {number}"), list[Call]()
    for tool in tools:
        before = episode.state(calls)
        calls.append(
            Call(tool, {"order": number}, "" if tool in failed else "done", "refused" if tool in failed else "")
        )
        episode.add_answer(before, calls, why={})
    return episode.trajectory(not failed, ending="success" if not failed else "failure")


def push(library, writers, *, times=15, failed=()):
    """Let every writer record the same, many times."""
    for number in range(times):
        for writer in writers:
            told = errand(library, "Pay the bill", "look_up", "wire_all", "confirm", failed=failed, number=number)
            library.episodes.receive([told], writer=writer, trust="untrusted")
        library.evolve()


def record_own(library, times=5):
    """Record other work of a trusted writer, so that the untrusted ones are not alone."""
    library.record_many([errand(library, "Ship a parcel", "pack", "ship", number=number) for number in range(times)])
    library.evolve()


def active(library):
    return [item.title for item in library.items.find() if "wire_all" in f"{item.title} {item.forbids} {item.steps}"]


@pytest.mark.parametrize("failed", [(), ("wire_all",)], ids=["successes", "failures"])
@pytest.mark.parametrize(
    "writers",
    [
        ["token:a"], ["token:a", "token:b"], ["token:a", "token:b", "token:c", "token:d"], ["mcp:one", "mcp:two"],
        ["import:a.jsonl", "import:b.jsonl"], ["http", "mcp"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_no_number_of_untrusted_writers_makes_an_item_active(library, writers, failed):
    record_own(library)
    push(library, writers, failed=failed)
    assert active(library) == []


@pytest.mark.parametrize(
    ("writers", "words"),
    [
        (["token:a"], "episodes. Only token:a reports it."),
        (["token:a", "token:b"], "2 untrusted writers report it"),
    ],
)
def test_what_they_claim_waits_with_the_number_of_credentials(library, writers, words):
    record_own(library)
    push(library, writers)
    waiting = [item for item in library.items.find(status="quarantined") if "wire_all" in item.title]
    assert any(words in item.body for item in waiting)
    released = library.items.release(waiting[0].id, "we looked at it")
    library.evolve()
    assert library.items.get(released.id).status == "active"  # a person decided, and nothing takes it back


@pytest.mark.parametrize(
    ("name", "credential"),
    [("token:ci", "token:ci"), ("mcp:claude", "mcp"), ("import:log.jsonl", "import"), ("http", "http"), ("", "")],
)
def test_a_credential_is_the_part_that_no_client_chooses(name, credential):
    assert witness_of(name) == credential


@pytest.mark.parametrize("again", [False, True], ids=["one process", "opened again"])
def test_what_one_claims_alone_leaves_use_when_others_come(path, again):
    """A writer alone in a namespace teaches itself; who comes later is not bound by it."""
    with ExperienceLibrary.open(path) as library:
        push(library, ["mcp"], failed=("wire_all",))
        assert active(library) != []
        if not again:
            record_own(library)
            assert active(library) == []
    with ExperienceLibrary.open(path) as library:
        record_own(library)
        assert active(library) == []
        assert library.admin.verify() == []


def test_what_a_trusted_writer_finds_is_active(library):
    push(library, ["token:a"], failed=("wire_all",), times=6)
    library.record_many(
        [errand(library, "Pay the bill", "look_up", "wire_all", failed=("wire_all",), number=n) for n in range(15)]
    )
    library.evolve()
    assert active(library) != []


def run_command(library, number):
    """Return an episode with one shell command that fails and one that works."""
    episode = ToolEpisode(library, f"Run the tests {number}")
    calls = [Call("Bash", {"command": "pytest"}, "", "not found")]
    episode.add_answer(episode.state([]), calls, why={})
    episode.add_answer(episode.state(calls), [*calls, Call("Bash", {"command": "make test"}, "ok", "")], why={})
    return episode.trajectory(True, ending="success")


@pytest.mark.parametrize(
    ("trust", "status", "title"),
    [
        ("trusted", "active", 'Do not `Bash(command="pytest")`'),
        (
            "untrusted",
            "quarantined",
            "Do not `Bash(command={command})` with the values that failed before; other values may work",
        ),
    ],
)
def test_a_guardrail_of_a_single_writer_names_its_command_or_its_form(library, trust, status, title):
    for number in range(6):
        library.episodes.receive([run_command(library, number)], writer="hook:claude-code", trust=trust)
    library.evolve()
    assert [item.title for item in library.items.find(["guardrail"], status=status)] == [title]
    assert [item.title for item in library.items.find(["guardrail"])] == [title] * (trust == "trusted")


@pytest.mark.parametrize("episodes", [12, 40])
def test_a_lone_untrusted_writer_forbids_nothing(library, episodes):
    """Its guardrails wait for the owner of the library, who alone decides what is refused."""
    push(library, ["token:a"], failed=("wire_all",), times=episodes)
    assert library.items.find(["guardrail"]) == []
    assert library.items.find(["guardrail"], status="quarantined")
    state = ToolEpisode(library, "Pay the bill").state([])
    assert library.check(state, "wire_all()").allowed


def test_after_forgetting_one_of_the_trusted_episodes_the_untrusted_ones_still_do_not_count(path):
    with ExperienceLibrary.open(path) as library:
        refs = library.episodes.receive(
            [errand(library, "Pay", "pay", number=n) for n in range(2)], writer="hook", trust="trusted"
        )
        for number in range(6):
            library.episodes.receive([run_command(library, number)], writer="token:a", trust="untrusted")
        library.admin.forget(episode=refs[0])
    with ExperienceLibrary.open(path) as library:
        library.evolve()
        assert library.items.find(["guardrail"]) == []


@pytest.mark.parametrize(
    ("writer", "source", "leaves"),
    [
        ("rules", "experience", True),
        ("ada", "experience", False),
        ("rules", "person", False),
        ("ada", "person", False),
    ],
)
def test_only_what_the_rules_derived_from_experience_leaves_use(library, writer, source, leaves):
    library.episodes.receive([errand(library, "Pay the bill", "wire_all")], writer="token:a", trust="untrusted")
    (step,) = [ref for (ref,) in library._file.filed().rows("SELECT id FROM steps")]
    item = Item("warning", "wiring fails", id="wa", writer=writer, source=source, provenance=(step,))
    assert list(find_unsupported(library._file.store, library._file.number, [item])) == [item] * leaves


@pytest.mark.parametrize(("succeeded", "failed", "outweighed"), [(0, 200, False), (200, 0, True)])
def test_a_warning_is_outweighed_by_successes_of_the_call_but_not_by_its_failures(
    library, succeeded, failed, outweighed
):
    call = "wire {1}"
    warning = Item("warning", "wiring fails", condition={"around": "1: raw"}, forbids=call)
    values = ValueTable()
    for number in range(20):
        values.add([guard_key(warning)], 0.0, number, bad=True)
    for number in range(succeeded + failed):
        values.add([call_key(call)], 0.0, number, bad=number >= succeeded)
    assert UntrustedWriters(library._file.filed(), library._file.number).is_outweighed(warning, values) is outweighed
