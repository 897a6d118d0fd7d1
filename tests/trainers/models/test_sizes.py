"""The table of memory and time by base: its formulas give the known counts."""

import pytest

from hardwon.trainers.models.adapters import add_adapter
from hardwon.trainers.models.gpus import GPUS, RECIPES, USABLE, estimate, find_budget, format_recipes
from hardwon.trainers.models.sizes import BASES, BUDGET, GIB, Shape, format_table
from hardwon.trainers.models.tiny import TinyConfig, build_model


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("SmolLM2-135M", 134_515_008),
        ("Qwen3-0.6B", 596_049_920),
        ("Qwen3-8B", 8_190_735_360),
        ("Qwen2.5-0.5B", 494_032_768),
        ("Qwen2.5-1.5B", 1_543_714_304),
        ("Qwen2.5-7B", 7_615_616_512),
    ],
)
def test_the_parameters_are_those_of_the_published_models(name, parameters):
    (base,) = [each for each in BASES if each.name == name]
    assert base.parameters == parameters


def test_an_adapter_has_the_parameters_that_the_trainer_trains():
    model = build_model(50, TinyConfig(hidden=16, layers=2, heads=4, kv_heads=2, intermediate=24))
    adapted = add_adapter(model, "policy", 4)
    trained = sum(value.numel() for name, value in adapted.named_parameters() if ".lora_" in name)
    assert Shape("tiny", 16, 2, 4, 2, 4, 24, 50).count_adapter(4) == trained


def test_the_cache_of_a_token_is_its_keys_and_values():
    """46 KB a token for a model of 135 million parameters."""
    assert BASES[0].compute_cache(4) == 46_080


def test_the_tables_have_a_row_for_each_base_and_gpu():
    assert len(format_table().splitlines()) == 2 + len(BASES)
    assert len(format_recipes().splitlines()) == 2 + len(RECIPES) * len(GPUS)


def test_a_recipe_fits_its_gpu():
    """The budget that is named fits, and the next larger one does not, unless it is the default."""
    for base in BASES:
        for gpu in GPUS:
            budget, most = find_budget(base, gpu), USABLE * gpu.memory * GIB
            fixed = estimate(base, gpu).memory - BUDGET * base.compute_activations(2)
            assert not budget or fixed + budget * base.compute_activations(2) <= most
            assert budget == BUDGET or fixed + (budget + 1024) * base.compute_activations(2) > most
