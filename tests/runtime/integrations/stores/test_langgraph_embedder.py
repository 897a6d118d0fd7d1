"""The embedder of LangGraph's index settings."""

import threading

import numpy as np
import pytest

from hardwon.memory.errors import ConfigError

pytest.importorskip("langgraph", reason="needs the chat extra")
from langchain_core.embeddings import Embeddings

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
def test_the_fingerprint_is_the_name_of_the_model_and_the_dimensions(embed, label):
    assert GivenEmbedder({"dims": 3, "embed": embed}).fingerprint == f"langgraph:{label}:3"


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
