"""The embedder of LangGraph's index settings."""

import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from hardwon.memory.errors import ConfigError

pytest.importorskip("langgraph", reason="needs the chat extra")
from langchain_core.embeddings import Embeddings

from hardwon.runtime.integrations import langgraph_embedder
from hardwon.runtime.integrations.langgraph_embedder import GivenEmbedder


def count_letters(texts):
    return [[float(text.count(letter)) for letter in "abc"] for text in texts]


class Model(Embeddings):
    """Embeddings of LangChain, with the name of its model under this attribute."""

    def __init__(self, **names):
        vars(self).update(names)
        self.threads = []

    def embed_documents(self, texts):
        self.threads.append(threading.get_ident())
        return count_letters(texts)

    def embed_query(self, text):
        return self.embed_documents([text])[0]

    async def aembed_documents(self, texts):
        return self.embed_documents(texts)

    async def aembed_query(self, text):
        return self.embed_query(text)


@pytest.mark.parametrize("index", [{"dims": 3}, {"embed": count_letters}, {"dims": True, "embed": count_letters},
                                   {"dims": 0, "embed": count_letters}])  # fmt: skip
def test_dimensions_and_embeddings_belong_together(index):
    with pytest.raises(ConfigError, match="pass both, or only fields"):
        GivenEmbedder(index)


@pytest.mark.parametrize(
    ("embed", "label"),
    [
        (count_letters, "count_letters"),
        (Model(), "Model"),
        (Model(model="small"), "small"),
        (Model(model_name="large"), "large"),
    ],
)
def test_the_name_is_that_of_the_model_with_the_dimensions(embed, label):
    assert GivenEmbedder({"dims": 3, "embed": embed}).name == f"langgraph:{label}:3"


def prefixed(prefix):
    def embed(texts):
        return count_letters([prefix + text for text in texts])

    return embed


def with_prefix(texts, prefix="a"):
    return count_letters([prefix + text for text in texts])


class Deployed:
    """An application's own class with a method that embeds."""

    def __init__(self, deployment):
        self._deployment = deployment

    def embed(self, texts):
        return count_letters(texts)


def fingerprint(embed):
    return GivenEmbedder({"dims": 3, "embed": embed}).fingerprint


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(
            (Model(model="small", **{name: "a"}), Model(model="small", **{name: "b"}))
            for name in (
                *("deployment", "azure_deployment", "repo_id", "model_id", "dimensions", "base_url", "endpoint"),
                *("query_instruction", "document_prefix", "revision", "_prefix"),
            )
        ),
        (Model(model_kwargs={"prefix": "a"}), Model(model_kwargs={"prefix": "b"})),
        (Model(model="small"), Model(model="small", normalize=False)),
        (Model(underlying=Model(model="a")), Model(underlying=Model(model="b"))),
        (prefixed("a"), prefixed("b")),
        (partial(with_prefix, prefix="a"), partial(with_prefix, prefix="b")),
        (Deployed("a").embed, Deployed("b").embed),
        (lambda texts: count_letters(["a" + text for text in texts]),
         lambda texts: count_letters(["b" + text for text in texts])),
        ("openai:text-embedding-3-small", "openai:text-embedding-3-large"),
    ],
)  # fmt: skip
def test_every_setting_that_may_change_vectors_is_part_of_the_fingerprint(one, other, monkeypatch):
    """Vectors of two embedders are never compared."""
    monkeypatch.setattr(langgraph_embedder, "ensure_embeddings", lambda embed: embed)  # the provider is not installed
    assert fingerprint(one) != fingerprint(other)


@pytest.mark.parametrize("name", ["api_key", "timeout", "max_retries", "chunk_size", "cache_folder", "show_progress"])
def test_settings_of_the_connection_are_not_part_of_the_fingerprint(name):
    """A renewed key embeds nothing again."""
    assert fingerprint(Model(model="small", **{name: "a"})) == fingerprint(Model(model="small", **{name: "b"}))


def test_vectors_have_unit_length_or_are_zero():
    vectors = GivenEmbedder({"dims": 3, "embed": count_letters}).embed(["aaabbbb", "c", "xyz"])
    assert vectors == pytest.approx(np.array([[0.6, 0.8, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]))


def test_embeddings_that_need_no_loop_run_in_the_thread_of_the_caller():
    threads = []

    def embed(texts):
        threads.append(threading.get_ident())
        return count_letters(texts)

    model = Model()
    for one in (embed, model):
        GivenEmbedder({"dims": 3, "embed": one}).embed(["a"])
    assert threads == model.threads == [threading.get_ident()]


class Slotted(Model):
    """Embeddings with a setting outside of `__dict__`."""

    __slots__ = ("revision",)

    def __init__(self, revision):
        super().__init__()
        self.revision = revision


def nest(value):
    return Model(inner=Model(inner=Model(inner=Model(inner=value))))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Slotted("a"), Slotted("b")),
        (nest("a"), nest("b")),
        (Model(setting=b"a"), Model(setting=b"b")),
        (Model(setting={"a"}), Model(setting={"b"})),
        (Model(setting=Path("a")), Model(setting=Path("b"))),
    ],
    ids=["slot", "deep", "bytes", "set", "path"],
)
def test_embeddings_with_another_setting_of_any_type_are_told_apart(one, other):
    prints = [GivenEmbedder({"dims": 3, "embed": embed}).fingerprint for embed in (one, other, one)]
    assert prints[0] == prints[2] != prints[1]
