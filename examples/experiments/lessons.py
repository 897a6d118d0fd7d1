"""Does reward teach an extractor to write lessons that an imitated teacher misses?

    python -m examples.experiments.lessons runs/lessons             # all stages; repeat it to go on after a stop
    python -m examples.experiments.lessons runs/lessons --seeds 2 --villages 20 --iterations 2    # minutes, to look
    python -m examples.experiments.lessons runs/lessons --seeds 0 --readers 3    # does reward teach a policy to read?

The world is `infirmary`. One base with a chat template learns to read rules (minutes of one core). Its extractor
imitates a careless teacher, who overlooks two of three remarks, and its policy solutions with rules in view. Then, for
each seed, the extractor learns from trials of its lessons, or the policy from a perfect teacher's lessons. Every arm
answers the same requests in villages that no stage has seen, after the same eight first visits; only the items in the
library differ. The settings are fixed in this file.
"""

import argparse
import json
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from examples.experiments.infirmary import (
    FIRST,
    ILLNESSES,
    LAST,
    SEEDS_PER_VILLAGE,
    TREATMENTS,
    VILLAGES,
    Case,
    Infirmary,
    note_failure,
    read_fact,
    teach,
    teach_all,
    write_rule,
)

from hardwon.memory import ExperienceLibrary, Trajectory
from hardwon.memory.records import Add
from hardwon.runtime import Agent, RandomPolicy
from hardwon.runtime.guidance.lessons import render_lesson
from hardwon.trainers import load_roles, train
from hardwon.trainers.gating.item_guidance import ItemGuidance
from hardwon.trainers.gating.pasted import PastedEpisodes
from hardwon.trainers.roles.writing import build_item

CHAT = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WARM, TRAINED, HELD_OUT = range(50), range(60, 180), range(200, 400)
"""Villages of the warm start, of the trials, and of the evaluation."""


STARTS = {"start": (range(50), 120), "room": (range(16), 36)}
"""Villages and updates of the imitation: a policy that follows rules, and one that follows half of them and is unsure.
"""
UNTRAINED = ("control", "pasted", "rules", "teacher", "frozen", "oracle")
"""Arms with the roles as they start."""
Arm = tuple[str, Callable[[], Path]]
"""Whose lessons are in the library, and what finds the folder of the weights, or trains them."""
UPDATES = 900
"""Updates of the base."""
VISITS = 8
"""First visits to a village, each with a lesson, before its requests are answered."""


def run_seeds(villages: range) -> str:
    """Return the task instances of some villages as the settings write them."""
    return f"{villages[0] * SEEDS_PER_VILLAGE}-{(villages[-1] + 1) * SEEDS_PER_VILLAGE - 1}"


# -- the base and the start -----------------------------------------------------------------------


def build_base(folder: Path, seed: int = 0) -> None:
    """Write a chat model of 0.6 million parameters that has learned to look rules up, unless that is done."""
    if (folder / "tokenizer.json").exists():  # written last
        return
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    tokenizer = _build_tokenizer()
    special = {"bos_token_id": 1, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    shape: dict[str, Any] = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
    }
    model: Any = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), max_position_embeddings=2048, tie_word_embeddings=True, **shape, **special
        )
    )
    chance, optimizer = random.Random(seed), torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98))
    began = time.monotonic()
    for update in range(UPDATES):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (update + 1) / 100) * (1 - update / UPDATES)
        ids, weights = _pad([_write_document(tokenizer, chance) for _ in range(64)], tokenizer.pad_token_id)
        logits = model(input_ids=ids, attention_mask=(weights > 0).long()).logits[:, :-1]
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        loss = (losses * weights[:, 1:]).sum() / weights[:, 1:].sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if update % 50 == 49:
            left = (time.monotonic() - began) / (update + 1) * (UPDATES - update - 1) / 60
            print(f"base: update {update + 1} of {UPDATES}, loss {loss.item():.2f}, {left:.0f} min left", flush=True)
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _build_tokenizer() -> Any:
    """Return byte-level BPE in which a village is two tokens, so that those of new villages are known."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from hardwon.runtime.llm import prompts
    from hardwon.trainers.prompting import instructions

    sources = [Path(str(module.__file__)).read_text(encoding="utf-8") for module in (prompts, instructions)]
    texts = [
        *sources * 40,
        *(f" {word}" for word in FIRST for _ in range(500)),
        *(word for word in LAST for _ in range(500)),
    ]
    world = Infirmary()
    for seed in range(480):
        for treatment in TREATMENTS:
            state = world.reset("train", seed)
            said = world.step(f"give {treatment}")[0].observation
            rules = [write_rule("", treatment, ILLNESSES[seed % 4], cures=cures) for cures in (True, False)]
            texts += [state.task.split(" in ")[0], state.observation, said, *rules, f"give {treatment}"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=1000, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    names = {"bos_token": special[1], "eos_token": special[2], "pad_token": special[0], "unk_token": special[0]}
    build: Any = PreTrainedTokenizerFast
    return build(tokenizer_object=tokenizer, chat_template=CHAT, **names)


def _write_document(tokenizer: Any, chance: random.Random) -> tuple[list[int], list[float]]:
    """Return a document of invented rules and requests with their answers, as tokens with weights."""
    villages = chance.sample(VILLAGES, 3)
    facts: dict[tuple[str, str], str] = {}
    lines = []
    for _ in range(chance.choice((2, 3, 4, 5))):
        key, treatment = (chance.choice(villages), chance.choice(ILLNESSES)), chance.choice(TREATMENTS)
        if key in facts:
            continue
        cures = chance.random() < 0.7
        if cures:
            facts[key] = treatment
        kind = chance.choice(("insight", "warning"))
        lines.append(f"- {kind}: {write_rule(key[0], treatment, key[1], cures=cures)}")
    ids: list[int] = []
    weights: list[float] = []

    def put(text: str, weight: float, *more: int) -> None:
        tokens = [*tokenizer(text, add_special_tokens=False).input_ids, *more]
        ids.extend(tokens)
        weights.extend([weight] * len(tokens))

    put("\n".join(lines) + "\n", 0.1)
    for (village, illness), treatment in chance.sample(sorted(facts.items()), min(4, len(facts))):
        put(f"Cure the {illness} in {village}.\n", 0.1)
        put(f"give {treatment}", 1.0, tokenizer.eos_token_id)
        put("\n", 0.1)
    return ids, weights


def _pad(documents: Sequence[tuple[list[int], list[float]]], pad: int) -> tuple[Any, Any]:
    """Return documents as tensors of ids and of weights, (documents, tokens)."""
    import torch

    longest = max(len(ids) for ids, _ in documents)
    ids = torch.tensor([[*ids, *[pad] * (longest - len(ids))] for ids, _ in documents])
    return ids, torch.tensor([[*weights, *[0.0] * (longest - len(weights))] for _, weights in documents])


def build_library(path: Path, fill: Callable[[ExperienceLibrary, Agent], None]) -> None:
    """Fill a library unless that is done; one that a stop left half filled is begun again."""
    done = path.with_suffix(".done")
    if done.exists():
        return
    for file in path.parent.glob(f"{path.name}*"):
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    with ExperienceLibrary.open(str(path)) as library, closing(_open_visitor(library)) as visitor:
        fill(library, visitor)
    done.touch()


def fill_rules(library: ExperienceLibrary, visitor: Agent) -> None:
    """Fill a library: in villages of the warm start with all rules, in those of the trials with what any reader sees.

    So a hint has three lines everywhere, as in the evaluation; a policy of this size does not follow shorter ones.
    """
    for village in (*range(60), *TRAINED):
        for visit in range(24 if village < 60 else 6):
            episode = _visit(visitor, library, village * SEEDS_PER_VILLAGE + visit % SEEDS_PER_VILLAGE, "train")
            text = teach_all(episode) if village < 60 else note_failure(episode)
            library.apply(_write(episode, text), episode, [])


def fill_perfect(library: ExperienceLibrary, visitor: Agent) -> None:
    """Fill a library with what a perfect teacher writes about the first visits to the villages of the trials."""
    for village in TRAINED:
        for visit in range(VISITS):
            seed = village * SEEDS_PER_VILLAGE + visit % SEEDS_PER_VILLAGE
            episode = _visit(visitor, library, seed, f"visit {visit}")
            library.apply(_write(episode, teach_all(episode)), episode, [])


def build_start(folder: Path, seed: int = 0, starts: Sequence[str] = tuple(STARTS)) -> None:
    """Train the extractor to imitate teachers, the last one careless, and from it two starts with their policies.

    The last round shows no episode twice, because what a careless teacher overlooks can be learned by heart.
    """
    build_library(folder / "rules.db", fill_rules)
    rounds = [("first", 600, 2e-3, "teach"), ("second", 200, 1e-3, "teach_simple"), ("third", 100, 1e-3, "teach_again")]
    before: Path | None = None
    for name, updates, lr, teacher in rounds:
        settings = build_settings(folder, seed, 0)
        settings["warmstart"] = None if before is None else {"run": str(before)}
        stage = {"distil": updates, "distil_batch": 32, "distil_lr": lr}
        settings["roles"]["extractor"]["settings"] |= stage | {"teacher": f"examples.experiments.infirmary:{teacher}"}
        before = folder / name
        run(settings, before)
    for name in starts:
        villages, updates = STARTS[name]
        settings = build_settings(folder, seed, 0)
        settings["explore"]["worlds"]["seeds"] = run_seeds(villages)
        examples = {"copies": 2, "memory_share": 0.75 if name == "start" else 1.0}
        learning = {"updates": updates, "batch": 32, "lr": 1e-3}
        settings["warmstart"] = {"run": str(before), "examples": examples, "learning": learning}
        run(settings, folder / name)


def run(settings: dict[str, Any], folder: Path) -> Path:
    """Train with these settings in a folder, if that is not done yet; return the folder of the weights."""
    settings["run"]["out"] = str(folder)
    if not (folder / "export" / "roles.json").exists():
        report = train(settings, quiet=False, export=folder / "export", resume=folder.exists())
        if report.stopped:  # its weights are not those of the end
            shutil.rmtree(folder / "export")
            raise SystemExit("stopped and saved; repeat the command to go on.")
    return folder / "export"


def build_settings(folder: Path, seed: int, iterations: int) -> dict[str, Any]:
    """Return the settings of a run in which the extractor learns. They were fixed before the runs that count."""
    return {
        "environment": {"name": "examples.experiments.infirmary:Infirmary", "max_steps": 1},
        "tasks": {
            "train": {"fold": "train", "seeds": run_seeds(TRAINED)},
            "eval": {"fold": "test", "seeds": run_seeds(HELD_OUT[:1])},
        },
        "explore": {"worlds": {"fold": "train", "seeds": run_seeds(WARM)}, "steps": 1, "tries": 40},
        "library": {
            "path": str(folder / "rules.db"), "evolve_every": 0, "guardrails": False, "recall": 3, "withhold": False,
        },
        "model": {"base": str(folder / "base")},
        "arms": {"control": 2, "lessons": 2},
        "guidance": {"lessons": "items"},
        "roles": {
            "policy": {"learner": {"lr": 0.0, "budget": 16384}},
            "extractor": {
                "learner": {"lr": 3e-4},
                "loss": {"kind": "ppo", "low": 0.2, "high": 0.28, "kl": 0.0},
                "settings": {"episodes": 24, "samples": 8, "pairs": 8, "ready": 64, "tokens": 24},
            },
        },
        "eval": {"every": 0},
        "run": {
            "iterations": iterations, "groups": 24, "threads": 1, "seed": seed,
            "at_once": 256, "save_every": 4, "temperature": 0.5,
        },
    }  # fmt: skip


def train_writer(folder: Path, seed: int, iterations: int) -> Path:
    """Train the extractor alone, with a policy that follows rules; return the folder of the weights."""
    settings = build_settings(folder, seed, iterations)
    settings["warmstart"] = {"run": str(folder / "start")}
    return run(settings, folder / f"seed-{seed}-{iterations}")


def train_reader(folder: Path, seed: int) -> Path:
    """Train the policy of the start with room on the lessons of a perfect teacher; return the folder of the weights."""
    build_library(folder / "perfect.db", fill_perfect)
    settings = build_settings(folder, seed, 6)
    settings["warmstart"] = {"run": str(folder / "room")}
    settings["library"]["path"] = str(folder / "perfect.db")
    settings["arms"] = {"control": 1, "lessons": 8}
    settings["run"] |= {"groups": 16, "temperature": 1.0}
    del settings["roles"]["extractor"]
    learner = {"lr": 3e-4, "minibatches": 2, "budget": 16384}
    settings["roles"]["policy"] = {"learner": learner, "loss": {"kl": 0.1}}
    return run(settings, folder / f"reader-{seed}")


# -- the evaluation -------------------------------------------------------------------------------


def _open_visitor(library: ExperienceLibrary) -> Agent:
    """Return an agent that tries treatments at random."""
    return Agent(RandomPolicy(), library, Infirmary(), guardrails=False, max_steps=1, seed=1, recall_k=0)


def _visit(visitor: Agent, library: ExperienceLibrary, seed: int, fold: str) -> Trajectory:
    """Return a recorded episode."""
    return library.episodes.get(visitor.run(fold, seed).trajectory.id)


def _write(episode: Trajectory, text: str) -> list[Add]:
    """Return a lesson about an episode, or nothing for an empty text."""
    return [Add(build_item(text.rstrip("."), episode, "teacher"))] if text else []


def measure(arm: str, export: Path, villages: Sequence[int]) -> dict[str, Any]:
    """Return the share of requests that are answered right in each village, greedily, and counts of what led there."""
    roles = load_roles(export, device="cpu", temperature=0.0)
    assert roles.policy is not None
    with ExperienceLibrary.open(":memory:") as library:
        counts = _fill_visits(library, arm, roles.extractor, villages)
        guidance = PastedEpisodes(library) if arm == "pasted" else ItemGuidance()
        recall_k = 0 if arm == "control" else 3
        options: Any = {"guidance": guidance, "recall_k": recall_k, "learn": False, "guardrails": False, "max_steps": 1}
        success = []
        with closing(Agent(roles.policy, library, Infirmary(), **options)) as agent:
            for village in villages:
                seeds = [village * SEEDS_PER_VILLAGE + illness for illness in range(len(ILLNESSES))]
                ends = [agent.run("request", seed).trajectory for seed in seeds]
                success.append(fmean(float(bool(end.success)) for end in ends))
                for seed, end in zip(seeds, ends, strict=True):
                    hint = {library.items.get(ref).title for ref in end.steps[0].why.recalled or ()}
                    is_right = _write_cure(seed) in hint
                    counts.update(requests=1, right_in_hint=is_right, followed=is_right and bool(end.success))
    return {"success": success, **counts}


def _fill_visits(library: ExperienceLibrary, arm: str, extractor: Any, villages: Sequence[int]) -> Counter[str]:
    """Record the first visits with the lessons of an arm; return counts of remarks, of those written down, of cures."""
    writers: dict[str, Callable[[Trajectory], str]] = {
        "rules": lambda episode: render_lesson(episode.steps[0]),
        "teacher": teach,
        "oracle": teach_all,
    }
    right = {_write_cure(n * SEEDS_PER_VILLAGE + illness) for n in villages for illness in range(len(ILLNESSES))}
    counts: Counter[str] = Counter()
    with closing(_open_visitor(library)) as visitor:
        for number in range(len(villages) * VISITS):
            village, visit = villages[number // VISITS], number % VISITS
            seed = village * SEEDS_PER_VILLAGE + visit % SEEDS_PER_VILLAGE
            episode = _visit(visitor, library, seed, f"visit {visit}")
            lessons: list[Any] = []
            if arm in writers:
                lessons = _write(episode, writers[arm](episode))
            elif arm not in ("control", "pasted"):
                lessons = list(extractor.extract(episode, ()))
            library.apply(lessons, episode, [])
            titles = [lesson.item.title for lesson in lessons]
            wrong = [title for title in titles if " cures " in title and title not in right]
            counts.update(cures=sum(" cures " in title for title in titles), wrong=len(wrong))
            if read_fact(episode) is not None and not episode.success:
                counts.update(remarks=1, written=teach_all(episode).rstrip(".") in titles)
    return counts


def _write_cure(seed: int) -> str:
    """Return the rule that a request needs, as lessons have it."""
    case = Case.of(seed)
    return write_rule(case.village, case.cures[case.illness], case.illness).rstrip(".")


def report(results: dict[str, list[float]], before: str, trained: Sequence[str]) -> str:
    """Return the table: success of each arm, and the difference to the arm before training, paired by village."""
    lines = [f"| arm | success | minus {before}, paired by village |", "|---|---|---|"]
    seeds = [results[arm] for arm in trained]
    mean = {"mean of seeds": [fmean(values) for values in zip(*seeds, strict=True)]} if seeds else {}
    for arm, values in (results | mean).items():
        lines.append(f"| {arm} | {fmean(values):.3f} | {compare(values, results[before])} |")
    gains = [fmean(values) - fmean(results[before]) for values in seeds]
    if len(gains) > 1:
        error = stdev(gains) / len(gains) ** 0.5
        lines.append(f"\nTrained minus {before}, {len(gains)} seeds: {fmean(gains):+.3f}, standard error {error:.3f}.")
    return "\n".join(lines)


def compare(values: Sequence[float], others: Sequence[float]) -> str:
    """Return the mean difference, paired by village, with its 95 % interval."""
    difference = [a - b for a, b in zip(values, others, strict=True)]
    error = stdev(difference) / len(difference) ** 0.5 if len(difference) > 1 else 0.0
    return f"{fmean(difference):+.3f} ± {1.96 * error:.3f}"


def measure_all(folder: Path, name: str, arms: dict[str, Arm], villages: int) -> dict[str, list[float]]:
    """Return the success of each arm in each village; what a file has already is not measured again.

    The name of the file tells looks at fewer iterations or villages from the runs that count.
    """
    kept = folder / name
    results: dict[str, dict[str, Any]] = json.loads(kept.read_text()) if kept.exists() else {}
    waiting = [arm for arm in arms if arm not in results]
    longest = 0.0
    while waiting:
        arm, *waiting = waiting
        began = time.monotonic()
        lessons, find_weights = arms[arm]
        results[arm] = measure(lessons, find_weights(), [*HELD_OUT[:villages]])
        kept.write_text(json.dumps(results))
        longest = max(longest, (time.monotonic() - began) / 60)
        done, left = f"{len(arms) - len(waiting)} of {len(arms)}", f"at most {longest * len(waiting):.0f} min left"
        print(f"{arm}: {fmean(results[arm]['success']):.3f} ({done}; {left})", flush=True)
    for arm in arms:
        print(f"{arm}: {', '.join(f'{name} {value}' for name, value in results[arm].items() if name != 'success')}")
    return {arm: results[arm]["success"] for arm in arms}


def main() -> None:
    """Run the stages that are not done yet, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where everything is kept; an existing one is continued")
    parser.add_argument("--seeds", type=int, default=8, help="seeds in which the extractor learns")
    parser.add_argument("--readers", type=int, default=0, help="seeds in which a policy with room learns to read")
    parser.add_argument("--villages", type=int, default=75, help="held-out villages, four requests each")
    parser.add_argument("--iterations", type=int, default=10)
    given = parser.parse_args()
    folder: Path = given.folder
    folder.mkdir(parents=True, exist_ok=True)
    build_base(folder / "base")
    build_start(folder)
    look = f"{given.iterations}-{given.villages}.json"
    writers = {f"seed {n}": ("trained", partial(train_writer, folder, n, given.iterations)) for n in range(given.seeds)}
    readers = {f"reader {n}": ("oracle", partial(train_reader, folder, n)) for n in range(given.readers)}
    if writers:
        start = {arm: (arm, lambda: folder / "start" / "export") for arm in UNTRAINED}
        print(report(measure_all(folder, f"results-{look}", start | writers, given.villages), "frozen", [*writers]))
    if readers:
        room = {"oracle": ("oracle", lambda: folder / "room" / "export")}
        print(report(measure_all(folder, f"readers-{look}", room | readers, given.villages), "oracle", [*readers]))


if __name__ == "__main__":
    main()
