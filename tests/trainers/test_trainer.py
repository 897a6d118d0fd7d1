"""Runs: what they leave behind, that they can be stopped and killed, and that they go on bit for bit."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tests import warm

from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.errors import ConfigError
from hardwon.trainers import metrics, train
from hardwon.trainers.algorithms.samplers import Drawn
from hardwon.trainers.checkpoint import find
from hardwon.trainers.config.loading import of
from hardwon.trainers.console import EpisodeCount
from hardwon.trainers.engines.base_models import load_tokenizer
from hardwon.trainers.evaluate import Played, evaluate_checkpoint, summarise, wilson
from hardwon.trainers.player import Player
from hardwon.trainers.rollouts import rollout
from hardwon.trainers.session import Session

TIMES = ("seconds", "tokens_per_second", "cpu_s")


def weights(out):
    """Versions, weights and optimisers of all roles of the newest checkpoint, the latter as one list of tensors."""
    saved = [torch.load(path, weights_only=True) for path in sorted(find(out).glob("*.pt")) if path.stem != "run"]
    parts = [role["state"]["learner"]["adam"]["state"].values() for role in saved]
    moments = [value for part in parts for state in part for value in state.values()]
    return [role["version"] for role in saved], [
        *(value for role in saved for value in role["state"]["weights"].values()),
        *moments,
    ]


def assert_same(one, other):
    (version, ours), (expected, theirs) = weights(one), weights(other)
    assert version == expected
    assert len(ours) == len(theirs)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def lines(out):
    """What was logged, times apart."""
    read = [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if not name.endswith(TIMES)} for line in read]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished run in the corridor, evaluated at its start and end, and its report; only to be read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        torch.set_num_threads(1)
        out = tmp_path_factory.mktemp("done") / "run"
        settings = {
            "environment": {"name": "corridor:Corridor", "max_steps": 6},
            "tasks": {"train": {"seeds": "0-11"}, "eval": {"seeds": "100-105"}},
            "explore": {"worlds": {"seeds": "0-5"}, "steps": 20, "tries": 3},
            "model": {"tiny": {"hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 16}},
            "arms": {"control": 2, "experience": 2},
            "warmstart": {"learning": {"updates": 5, "batch": 4}},
            "eval": {"every": 3, "copies": 2},
            "run": {"iterations": 3, "groups": 3, "out": str(out), "threads": 1},
        }
        yield train(settings, export=out.parent / "export"), out


# -- what a run does ----------------------------------------------------------------------------------


def test_a_run_evaluates_with_memory_on_and_off_and_says_the_harm(done):
    """systems.md §7.6: success, tokens and time of the arms, and how often memory did harm."""
    report, _ = done
    assert (report.iterations, report.stopped) == (3, False)
    assert list(report.final) == ["control", "experience"]
    shown = report.final["experience"]
    assert 0 <= shown["low"] <= shown["success"] <= shown["high"] <= 1
    assert 0 <= shown["harm"] <= 1
    assert shown["difference"] == pytest.approx(shown["success"] - report.final["control"]["success"])
    assert report.start != {}


def test_a_run_logs_every_iteration_once(done):
    _, out = done
    assert [line["iteration"] for line in metrics.read(out)] == [1, 2, 3]
    assert [line["iteration"] for line in metrics.read(out, "eval")] == [0, 3]
    told = {name for line in metrics.read(out) for name in line}
    assert {"success/control", "reward", "policy/entropy", "tokens_per_second", "groups_rerolled"} <= told
    assert list((out / "tensorboard").iterdir())


def test_a_checkpoint_plays_as_the_run_did(done, monkeypatch):
    """Weights, tokenizer and settings are all in the checkpoint; the episodes that have ended are counted."""
    report, out = done
    monkeypatch.setattr("hardwon.trainers.player.EpisodeCount", partial(EpisodeCount, every_s=0.0))
    lines: list[str] = []
    found = asyncio.run(evaluate_checkpoint(find(out), tell=lines.append))
    assert lines == [f"played {n} of 24 episodes" for n in range(1, 24)]
    assert {arm: part.success for arm, part in found.items()} == {
        arm: part["success"] for arm, part in report.final.items()
    }


def test_an_evaluation_plays_as_many_episodes_at_once_as_it_is_told(done, monkeypatch):
    """Fewer need less memory."""
    _, out = done
    sizes: list[int] = []

    async def collect(agents, engine, specs, **options):
        sizes.append(len(specs))
        return await rollout.collect(agents, engine, specs, **options)

    monkeypatch.setattr("hardwon.trainers.player.collect", collect)
    asyncio.run(evaluate_checkpoint(find(out), at_once=5))
    assert sizes == [5, 5, 5, 5, 4]


def test_a_run_that_was_killed_for_memory_goes_on_with_fewer_episodes_at_once(corridor, tmp_path):
    settings = corridor(run={"groups": 1}, eval={"every": 0})
    train(settings, ["run.iterations=1"])
    assert train(settings, ["run.iterations=2", "run.at_once=2"], resume=True).iterations == 2


def test_an_export_is_loaded_by_transformers(done):
    from transformers import AutoModelForCausalLM

    report, out = done
    (folder,) = report.exported
    model = AutoModelForCausalLM.from_pretrained(folder)
    ours = torch.load(find(out) / "policy.pt", weights_only=True)["state"]["weights"]
    assert all(torch.equal(parameter, ours[name]) for name, parameter in model.named_parameters())
    assert load_tokenizer(folder).convert_ids_to_tokens([2]) == ["<end>"]


def test_a_folder_that_holds_a_run_is_not_written_over(done):
    _, out = done
    with pytest.raises(ConfigError, match="holds a run already; continue it with --resume"):
        train(find(out).parents[1] / "config.yaml", [f"run.out={out}"])


def test_another_run_does_not_go_on_from_a_checkpoint(done):
    _, out = done
    with pytest.raises(
        ConfigError, match=r"roles\.policy\.learner\.lr was 0\.0003 and is now 0\.1, but a resumed run must keep it"
    ):
        train(out / "config.yaml", ["roles.policy.learner.lr=0.1"], resume=True)


def test_an_export_with_adapters_is_loaded_by_peft(corridor, tmp_path):
    """The adapter, its tokenizer, and the base that is nowhere else."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    settings = of(corridor(model={"adapter": 4}, run={"iterations": 1}))
    report = train(settings, export=tmp_path / "export")
    (folder,) = report.exported
    shape = json.loads((Path(folder) / "adapter_config.json").read_text())
    assert shape["r"] == 4
    base = AutoModelForCausalLM.from_pretrained(shape["base_model_name_or_path"])
    loaded = PeftModel.from_pretrained(base, folder)
    session = Session.restore(Path(report.checkpoint), tmp_path / "stage")
    ids = torch.arange(5, 15)[None]
    with torch.no_grad():
        expected = session.roles["policy"].model(input_ids=ids).logits
        assert torch.allclose(loaded(input_ids=ids).logits, expected, atol=1e-5)
        with loaded.disable_adapter():
            assert not torch.allclose(loaded(input_ids=ids).logits, expected, atol=1e-5)
    session.close()


def test_rows_name_the_version_that_sampled_them(corridor, monkeypatch):
    """The engine serves a new version after every update of the role."""
    versions = []
    play = Player.play

    async def watched(self, *arguments, **settings):
        rollouts = await play(self, *arguments, **settings)
        versions.append({row.version for rollout in rollouts for row in rollout.rows})
        return rollouts

    monkeypatch.setattr(Player, "play", watched)
    train(corridor(run={"iterations": 3, "rerolls": 0}, warmstart=None))
    assert versions == [{1}, {2}, {3}]


def test_groups_without_a_signal_are_rolled_again(corridor, monkeypatch):
    """Other worlds, so many times; success is told of the groups as they were first drawn."""
    monkeypatch.setattr("hardwon.trainers.roles.base.PolicyRole.wants", lambda self, group: False)
    report = train(corridor(run={"iterations": 1, "rerolls": 2}, warmstart=None))
    (line,) = metrics.read(Path(report.out))
    assert line["groups_rerolled"] == 6
    assert line["groups_without_signal"] == 3
    assert line["episodes"] == 18


def test_what_the_environment_breaks_is_counted_and_not_learnt_from(corridor, monkeypatch):
    from corridor import Corridor  # type: ignore[import-not-found]

    from hardwon.memory.errors import EnvironmentCrashed

    step, taken = Corridor.step, []

    def fails(self, action):
        taken.append(action)
        if len(taken) % 10 == 0:
            raise EnvironmentCrashed("the lights went out")
        return step(self, action)

    monkeypatch.setattr(Corridor, "step", fails)
    report = train(corridor(run={"iterations": 1, "rerolls": 0}, explore={"tries": 1}))
    (line,) = metrics.read(Path(report.out))
    assert line["failed/environment_crash"] + line["episodes"] == 18
    found = asyncio.run(evaluate_checkpoint(find(Path(report.out))))
    assert {problem for part in found.values() for problem in part.problems} == {"environment_crash"}


def test_one_role_is_trained_at_a_time(corridor, monkeypatch):
    """systems.md §7.3: the others are frozen, and a role that is not ready is passed over."""
    from hardwon.trainers.roles.base import PolicyRole
    from hardwon.trainers.roles.registry import ROLES

    class Second(PolicyRole):
        """Ready every third time it is asked to collect."""

        def __init__(self, parts):
            super().__init__(parts, name="second")
            self.seen = 0

        def collect(self, rollouts):
            self.seen += 1

        def ready(self):
            return self.seen >= 3

        def update(self):
            self.seen = 0
            return {"loss": 0.0}

    monkeypatch.setitem(ROLES, "second", Second)
    report = train(corridor(roles={"second": {}}, run={"iterations": 6, "rerolls": 0}, warmstart=None))
    found = [
        {name.partition("/")[0] for name in line if name.endswith("/loss")} for line in metrics.read(Path(report.out))
    ]
    assert found == [{"policy"}, {"policy"}, {"second"}, {"policy"}, {"policy"}, {"second"}]


# -- going on -----------------------------------------------------------------------------------------


POLICY = {
    "credit": {"name": "gigpo"},
    "loss": {"kl": 0.1},
    "learner": {"minibatches": 2, "epochs": 2, "lr": 0.003},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "reference": {"roles": {"policy": POLICY}},
    "adapter": {"model": {"adapter": 2}},
    "library": {"arms": {"control": 2, "library": 2}, "warmstart": None},
    "extractor into the library": {
        "arms": {"control": 2, "library": 2},
        "roles": {"extractor": {"settings": {"samples": 2, "pairs": 2, "tokens": 8, "ready": 4}}},
        "warmstart": None,
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_in_two_parts_is_the_run_in_one(corridor, tmp_path, variant):
    """Weights, optimiser, library and log, bit for bit."""
    settings = corridor(**VARIANTS[variant], run={"groups": 2}, tasks={"eval": {"seeds": "100-101"}})
    train(settings, ["eval.every=3", f"run.out={tmp_path / 'one'}"])
    train(settings, ["eval.every=3", f"run.out={tmp_path / 'two'}", "run.iterations=2"])
    train(settings, ["eval.every=3", f"run.out={tmp_path / 'two'}"], resume=True)
    assert_same(tmp_path / "one", tmp_path / "two")
    # the first part of the run in two evaluates at its own end
    assert lines(tmp_path / "one") == [
        line for line in lines(tmp_path / "two") if (line["iteration"], line["kind"]) != (2, "eval")
    ]


def start(settings, folder, *arguments):
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    command = [sys.executable, "-m", "hardwon.trainers", str(folder / "config.yaml"), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return warm.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(path, number, process):
    """Until so many lines are in a file, or the process is over."""
    while process.poll() is None and (not path.exists() or len(path.read_bytes().splitlines()) < number):
        time.sleep(0.005)


def test_a_run_that_was_killed_goes_on_bit_for_bit(corridor, tmp_path):
    """kill -9 at a random step, in a process of its own: the same weights, and no line twice.

    With an extractor whose items are recalled on the way.
    """
    settings = corridor(**VARIANTS["extractor into the library"], run={"iterations": 12, "save_every": 3, "threads": 1})
    train(settings, [f"run.out={tmp_path / 'straight'}"])
    process = start(settings, tmp_path, "--quiet")
    wait_for(tmp_path / "run" / "metrics.jsonl", random.randrange(2, 10), process)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    report = train(settings, resume=True)
    assert report.iterations == 12
    assert_same(tmp_path / "straight", tmp_path / "run")
    assert lines(tmp_path / "straight") == lines(tmp_path / "run")


def test_sigterm_finishes_the_iteration_saves_and_exits_with_0(corridor, tmp_path):
    settings = corridor(run={"iterations": 200, "save_every": 100, "threads": 1})
    process = start(settings, tmp_path)
    wait_for(tmp_path / "run" / "metrics.jsonl", 4, process)
    process.terminate()
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert out.startswith("stopped after ")
    assert "add --resume to continue" in err
    stopped = int(find(tmp_path / "run").name)
    assert 3 <= stopped < 200
    last = stopped + 2
    train(settings, [f"run.iterations={last}"], resume=True)
    train(settings, [f"run.iterations={last}", f"run.out={tmp_path / 'straight'}"])
    assert_same(tmp_path / "straight", tmp_path / "run")


def test_sigterm_in_another_thread_s_run_is_not_caught(corridor):
    """Signals are the main thread's; elsewhere a run goes without."""
    found = []
    runner = threading.Thread(target=lambda: found.append(train(corridor(run={"iterations": 1}, warmstart=None))))
    runner.start()
    runner.join()
    assert found[0].iterations == 1


def test_a_torn_checkpoint_is_passed_over(corridor, tmp_path):
    settings = corridor()
    train(settings, [f"run.out={tmp_path / 'straight'}"])
    report = train(settings)
    (Path(report.checkpoint) / "policy.pt").write_bytes(b"half")
    assert train(settings, resume=True).checkpoint == report.checkpoint
    assert_same(tmp_path / "straight", tmp_path / "run")
    assert lines(tmp_path / "straight") == lines(tmp_path / "run")


def test_resume_without_a_checkpoint_begins_anew(corridor):
    assert train(corridor(run={"iterations": 1}), resume=True).iterations == 1


# -- the library --------------------------------------------------------------------------------------


def test_rollouts_become_experience_and_the_start_stays_frozen(corridor, tmp_path):
    """systems.md §7.6: memory on, off, and as it was at the start; the library that was given stays as it is."""
    given = tmp_path / "given.db"
    with ExperienceLibrary.open(given) as library:
        library.add(Item(kind="strategy", title="go east", body="the prize is often in the golden room"))
    before = given.read_bytes()
    settings = corridor(arms={"control": 2, "library": 2}, library={"path": str(given)}, eval={"every": 2, "copies": 1})
    report = train(settings, ["run.iterations=2", "run.rerolls=0"])
    assert list(report.final) == ["control", "library", "library-frozen"]
    assert given.read_bytes() == before
    out = Path(report.out)
    with ExperienceLibrary.open(out / "library.db", read_only=True) as library:
        assert library.episodes.count() == 2 * 3 * 4
    with ExperienceLibrary.open(find(out) / "library-start.db", read_only=True) as library:
        assert library.episodes.count() == 0
        assert [item.title for item in library.items.find()] == ["go east"]


# -- parts --------------------------------------------------------------------------------------------


def test_worlds_are_drawn_once_before_any_twice():
    drawn = Drawn([("", seed) for seed in range(6)], seed=1)
    first = [world for _ in range(3) for world in drawn.draw(2)]
    assert len(set(first)) == 6
    again = Drawn([("", seed) for seed in range(6)], seed=1)
    again.count = 4
    assert again.draw(2) == first[4:]


def test_worlds_are_not_drawn_that_are_there():
    drawn = Drawn([("", seed) for seed in range(3)], seed=0)
    assert len(set(drawn.draw(2, without=[("", 1)]))) == 2
    assert drawn.draw(5, without=[("", 0), ("", 1)]) == [("", 2)]
    assert drawn.draw(1, without=[("", seed) for seed in range(3)]) == []


def test_wilson_s_interval():
    """By hand: 8 of 10 gives 0.490 to 0.943."""
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)


def test_differences_are_paired_by_world_and_harm_by_copy():
    """Worlds a and b: control 1, 0 and 1, 1; memory 1, 1 and 0, 1."""
    played = [
        Played(arm, world, copy, bool(success), 1, 1)
        for arm, worlds in {"control": {"a": (1, 0), "b": (1, 1)}, "shown": {"a": (1, 1), "b": (0, 1)}}.items()
        for world, successes in worlds.items()
        for copy, success in enumerate(successes)
    ]
    shown = summarise(played)["shown"]
    assert shown.difference == 0.0
    assert shown.error == pytest.approx(0.5)
    assert shown.harm == 0.25
    assert summarise(played)["control"].harm is None
    assert shown.worlds == {"a": 1.0, "b": 0.5}


def test_excluded_episodes_are_no_failures():
    long = [Played("control", world, 0, None, 1, 1, problem="context_exceeded") for world in "bc"]
    found = summarise([Played("control", "a", 0, True, 1, 1), *long])["control"]
    assert (found.episodes, found.success, found.excluded) == (1, 1.0, 2)
    assert found.problems == {"context_exceeded": 2}


def test_a_role_gives_what_its_arm_is_shown(corridor, monkeypatch):
    """What it wants to learn from while training, its best in an evaluation, what it was at first where frozen."""
    from hardwon.trainers.roles.base import PolicyRole
    from hardwon.trainers.roles.registry import ROLES

    shown = []

    class Guide(PolicyRole):
        def __init__(self, parts):
            super().__init__(parts, name="guide")

        def ready(self):
            return False

        async def prepare(self, specs, *, frozen=False):
            return self.given(specs, "at first" if frozen else "to learn")

        async def choose(self, specs):
            return self.given(specs, "best")

        def given(self, specs, text):
            shown.append((text, {spec.arm for spec in specs}, len(specs)))
            return [replace(spec, memory=text) for spec in specs]

    monkeypatch.setitem(ROLES, "guide", Guide)
    settings = corridor(
        arms={"control": 1, "advice": 2}, guidance={"advice": "role"}, roles={"guide": {}}, warmstart=None
    )
    report = train(settings, ["run.iterations=1", "run.rerolls=0", "eval.every=1"])
    evaluated = [("best", {"advice"}, 4), ("at first", {"advice-frozen"}, 4)]
    assert shown == [*evaluated, ("to learn", {"advice"}, 6), *evaluated]
    assert list(report.final) == ["control", "advice", "advice-frozen"]


def test_without_torch_the_extra_is_named(tmp_path):
    """A sentence and an exit code, not a traceback."""
    without = "import sys; sys.modules['torch'] = None; from hardwon.trainers.__main__ import main; main()"
    config = Path(__file__).parents[2] / "examples" / "train_coin.yaml"
    done = subprocess.run(
        [sys.executable, "-c", without, str(config)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "torch is not installed" in done.stderr
    assert "pip install" in done.stderr


@pytest.mark.parametrize("role", ["policy", "guide", "extractor", "admission"])
def test_an_unknown_setting_of_a_role_is_refused_before_anything_is_played(role, corridor, monkeypatch):
    """Exploring takes minutes, and a mistyped name should not cost them."""
    played = []
    monkeypatch.setattr("hardwon.trainers.session.Explorer", lambda *_, **__: played.append(1))
    roles = {"policy": {}, "guide": {}, role: {"settings": {"lenght": 3}}}
    settings = corridor(roles=roles, arms={"control": 2, "told": 2, "library": 2}, guidance={"told": "role"})
    with pytest.raises(ConfigError, match=f"roles.{role}.settings.lenght"):
        train(settings)
    assert played == []
