"""Every number of the settings has bounds: a value far outside of them is refused with its path."""

import dataclasses
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.config import bounds
from hardwon.trainers.config.loading import of
from hardwon.trainers.config.policy import PolicySettings
from hardwon.trainers.config.schema import TrainConfig
from hardwon.trainers.config.sources import list_settings
from hardwon.trainers.roles.admission import AdmissionSettings
from hardwon.trainers.roles.extractor import ExtractorSettings
from hardwon.trainers.roles.guides.role import GuideSettings

ROLES = {
    "policy": PolicySettings,
    "guide": GuideSettings,
    "extractor": ExtractorSettings,
    "admission": AdmissionSettings,
}
PLACES: dict[str, Any] = {
    "tasks.compose": PARTS.list_cards("composer"),
    "tasks.sampler": PARTS.list_cards("sampler"),
    "roles.policy.shape": PARTS.list_cards("shaper"),
    "roles.policy.extra": PARTS.list_cards("extra"),
    "roles.policy.sources": PARTS.list_cards("source"),
    "roles.policy.loss.terms": PARTS.list_cards("term"),
    "roles.policy.credit": PARTS.list_cards("estimator"),
}
FAR = (float("nan"), float("inf"), float("-inf"), -1e15, 1e15)
LEAST = {
    "environment": {"name": "textworld"},
    "tasks": {"train": {"fold": "train"}, "eval": {"fold": "dev"}},
    "roles": {"policy": {}},
}


def is_number(hint):
    return any(kind in (int, float) for kind in (hint, *get_args(hint)))


def walk_sections(kind: Any, path: str) -> Iterator[tuple[str, bool]]:
    """The paths of the numbers of a dataclass and of those in it, and whether they are whole."""
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        name, hint = f"{path}.{field.name}".removeprefix("."), hints[field.name]
        inner = [part for part in (hint, *get_args(hint)) if dataclasses.is_dataclass(part)]
        if name == "roles":
            inner, name = inner[:1], "roles.policy"
        for part in inner:
            yield from walk_sections(part, name)
        if is_number(hint):
            whole = int in (hint, *get_args(hint))
            yield ("arms.control" if name == "arms" else name), whole


def list_paths() -> list[tuple[str, bool]]:
    """The paths of all numbers of the settings."""
    paths = [*walk_sections(TrainConfig, "")]
    for role, kind in ROLES.items():
        paths += walk_sections(kind, f"roles.{role}.settings")
    for place, cards in PLACES.items():
        for name, card in cards.items():
            paths += [(f"{place}.{name}.{number}", whole) for number, whole in list_own(card.part)]
    return paths


def list_own(function: Any) -> list[tuple[str, bool]]:
    """The numbers among the keyword-only arguments of a function or a class, and whether they are whole."""
    hints = get_type_hints(getattr(function, "__init__") if isinstance(function, type) else function)  # noqa: B009
    names = list_settings(function)
    return [(name, int in (hints[name], *get_args(hints[name]))) for name in names if is_number(hints[name])]


def build(path: str, value: Any) -> dict[str, Any]:
    """Return settings with a value at a path; a number of an estimator stands behind the estimator's name."""
    import copy

    made: dict[str, Any] = copy.deepcopy(LEAST)
    parts = path.split(".")
    if path.startswith("roles.policy.credit.") and parts[3] in PARTS.list_cards("estimator"):
        made["roles"]["policy"]["credit"] = {"name": parts[3], "settings": {parts[4]: value}}
        return made
    place: Any = made
    for part in parts[:-1]:
        place = place.setdefault(part, {})
    place[parts[-1]] = value
    if path.startswith("roles.policy.shape.overlong."):
        place.setdefault("limit", 10)  # it has no default
    if "extra" in parts:
        made["roles"]["policy"]["loss"] = {"kind": "imitation"}
    if "sources" in parts:  # what a source needs besides
        settings = list_settings(PARTS.get("source", parts[3])).items()
        place |= {name: "policy" for name, parameter in settings if parameter.default is parameter.empty}
    return made


PATHS = list_paths()


def test_the_walk_reaches_every_kind_of_section():
    paths = {path for path, _ in PATHS}
    assert len(paths) > 180
    assert {
        "run.temperature", "roles.policy.loss.low", "warmstart.learning.lr", "arms.control", "model.adapter",
        "roles.guide.settings.cost", "roles.policy.sources.critic.discount", "tasks.compose.prefixed.groups",
        "tasks.sampler.staged.over", "roles.policy.shape.overlong.limit", "roles.policy.loss.terms.epo.horizon",
        "roles.policy.extra.gate.weight", "roles.policy.credit.gigpo.omega",
    } <= paths  # fmt: skip


@pytest.mark.parametrize("path", [path for path, _ in PATHS])
def test_a_number_has_bounds(path):
    name = path if ".credit." not in path else f"roles.policy.credit.settings.{path.rpartition('.')[2]}"
    found = bounds.find_bounds(name)
    assert found is not None
    assert found[0] < found[1]


@pytest.mark.parametrize(("path", "whole"), PATHS, ids=[path for path, _ in PATHS])
def test_a_number_far_out_of_its_range_is_refused_with_path_and_value(path, whole):
    section, _, name = path.rpartition(".")
    for value in FAR:
        given = int(value) if whole and abs(value) == 1e15 else value
        with pytest.raises(ConfigError) as caught:
            of(build(path, given))
        message = str(caught.value)
        assert name in message, (given, message)
        assert any(text in message for text in (str(given), f"{float(given):g}", repr(float(given)))), (given, message)
        assert section.split(".")[-1 if "credit" not in section else 2] in message, (given, message)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("roles.policy.credit.gigpo.discount", -1, r"credit\.settings\.discount is -1; use a number from 0 to 1"),
        ("roles.policy.credit.gigpo.discount", 1.5, r"credit\.settings\.discount is 1\.5"),
        ("roles.policy.credit.gigpo.omega", -3, r"credit\.settings\.omega is -3; use a number from 0 to 100"),
        ("roles.policy.loss.entropy", -0.01, r"roles\.policy\.loss\.entropy is -0\.01"),
        ("roles.guide.settings.cost", 100, r"roles\.guide\.settings\.cost is 100; use a number from 0 to 10"),
        ("roles.policy.learner.lr", 300, r"roles\.policy\.learner\.lr is 300"),
        ("run.keep", 0, r"run\.keep is 0; use a number from 1"),
        ("run.temperature", 0, r"run\.temperature is 0; use a number from 0\.001"),
        ("run.threads", 0, r"run\.threads is 0"),
        ("program.timeout_s", 0, r"program\.timeout_s is 0"),
        ("warmstart.learning.lr", 0, r"warmstart\.learning\.lr is 0"),
        ("roles.policy.learner.decay", 0, r"learner\.decay is 0"),
        ("roles.policy.loss.max_mismatch", 0, r"loss\.max_mismatch is 0"),
        ("roles.policy.settings.history", 0, r"settings\.history is 0"),
        ("roles.extractor.settings.samples", 1, r"extractor\.settings\.samples is 1; use a number from 2"),
        ("roles.admission.settings.teams", 1, r"admission\.settings\.teams is 1; use a number from 2"),
        ("roles.policy.loss.terms.lp-reg.keep", 0, r"lp-reg\.keep is 0"),
        ("roles.policy.shape.density.k", -1, r"density\.k is -1"),
        ("tasks.compose.repair.copies", 1, r"repair\.copies is 1; use a number from 2"),
        ("tasks.compose.prefixed.groups", 0, r"prefixed\.groups is 0"),
        ("tasks.compose.retry.attempts", 1, r"retry\.attempts is 1"),
        ("tasks.compose.revise.temperature", 0, r"revise\.temperature is 0"),
        ("tasks.compose.instructions.decay", 1, r"instructions\.decay is 1; use a number from 0 to 0\.999"),
        ("tasks.sampler.share.start", 0.6, r"share\.start is 0\.6; use a number from 0 to 0\.5"),
        ("tasks.sampler.informative.floor", 0, r"informative\.floor is 0"),
        ("tasks.compose.repair.copies", 2_000_000, r"tasks\.compose\.repair\.copies is 2e\+06"),
    ],
)
def test_a_slip_of_the_pen_is_refused(path, value, message):
    with pytest.raises(ConfigError, match=message):
        of(build(path, value))


def test_values_of_a_schedule_have_the_bounds_of_their_setting():
    settings = {**LEAST, "schedule": {"roles.policy.loss.entropy": [[0, 0.01], [5000, -1.0]]}}
    with pytest.raises(ConfigError, match=r"roles\.policy\.loss\.entropy is -1; use a number from 0 to 100"):
        of(settings)
    of({**LEAST, "schedule": {"roles.policy.loss.entropy": [[0, 0.01], [5000, 0.0]]}})


def test_settings_of_other_programs_have_no_bounds():
    paths = dict(bounds.list_numbers({"engine": {"settings": {"seed": -1}}, "a:B": {"weight": -7}}))
    assert [*map(bounds.find_bounds, paths)] == [None, None]


def test_a_range_of_seeds_is_not_longer_than_it_can_be_drawn_from():
    with pytest.raises(ConfigError, match="name at most 1,000,000 of them"):
        of({**LEAST, "tasks": {"train": {"fold": "train", "seeds": "0-99999999999"}, "eval": {"fold": "dev"}}})
