"""The dashboard in headless Chromium: what is asked of whom, by keyboard, at both widths, and what people do there."""

import json
import re
from urllib.parse import urlsplit

import pytest

from hardwon.apps.http.access.auth import Tokens
from hardwon.apps.shared.common import list_ways
from hardwon.memory import ExperienceLibrary, Item, Trajectory
from hardwon.memory.upkeep.figures import read_clusters

LONG = "acme-airline-support-eu-west-production"

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

PAGES = [
    *("/", "/?axis=time", "/search?text=apple", "/items", "/items?text=apple&how=hybrid"),
    *("/episodes", "/episodes?ended=failed&text=apple", "/runs", "/runs/coin"),
]


@pytest.fixture(scope="module")
def ids(folder):
    """Ids of what has a page of its own."""
    with ExperienceLibrary.open(folder / "library.db", read_only=True) as library:
        return {
            "guardrail": library.items.find(["guardrail"])[0].id,
            "episode": library.episodes.find(limit=1)[0]["id"],
            "waiting": library.items.find(status="quarantined")[0].id,
            "quarantined": library.items.find(status="quarantined")[1].id,
            "insight": next(item.id for item in library.items.find(["insight"]) if "Apples" in item.title),
            "situation": library.admin.query(read_clusters, 1)[0]["signature"],
            "summary": library.episodes.summaries(limit=1)[0].id,
            "step": library.episodes.get(library.episodes.find(limit=1)[0]["id"]).steps[0].id,
        }


def all_pages(ids):
    return [
        *PAGES, f"/items/{ids['guardrail']}", f"/episodes/{ids['episode']}", f"/situations/{ids['situation']}",
        f"/attempts/{ids['summary']}", f"/steps/{ids['step']}",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_looks_right(visit, ids, url, width):
    """Nothing asked of another host, no error in the console, nothing wider than the page."""
    for path in all_pages(ids):
        page = visit(path, width=width)
        assert {urlsplit(asked).netloc for asked in page.asked if not asked.startswith(("data:", "blob:"))} == {
            urlsplit(url).netloc
        }, path
        assert page.wrong == [], path
        wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wider <= 0, path
        assert page.locator("main h1").inner_text().strip(), path
        page.context.close()


def test_everything_that_can_be_used_has_a_name(visit, ids):
    """A button, link or field without a name is nothing to who cannot see it."""
    for path in all_pages(ids):
        page = visit(path)
        nameless = page.evaluate(
            """() => [...document.querySelectorAll('a, button, select, input, textarea')]
                .filter(e => e.type !== 'hidden' && e.offsetParent !== null)
                .filter(e => !(e.innerText || '').trim() && !e.getAttribute('aria-label') && !e.title
                             && !(e.labels && e.labels.length) && !e.closest('label')
                             && !e.getAttribute('aria-labelledby'))
                .map(e => e.outerHTML.slice(0, 120))"""
        )
        assert nameless == [], path
        page.context.close()


def test_pages_are_reached_by_keyboard(visit):
    page = visit("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    for name in ("Overview", "Lessons"):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == name
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.wait_for_url("**/items")
    page.get_by_label("Text").focus()
    page.keyboard.type("apples")
    page.keyboard.press("Enter")
    page.wait_for_url("**text=apples**")
    assert "Apples lie in boxes" in page.locator("#main").inner_text()


def test_overview_has_its_figures_and_times_recall(visit):
    page = visit("/")
    page.wait_for_selector("text=measured now")
    text = page.locator("#main").inner_text()
    assert "Episodes\n40" in text
    assert "only the agent with memory failed" in text
    assert page.locator("canvas, svg").count() >= 2


def test_replay_goes_on_and_back_by_the_arrow_keys(visit, ids):
    page = visit(f"/episodes/{ids['episode']}")
    page.get_by_text("Step 0 of 2: wait").wait_for()
    page.keyboard.press("ArrowRight")
    page.get_by_text("Step 1 of 2: open box").wait_for()
    told = page.locator("section[aria-live]").inner_text()
    assert "was shown" in told
    assert "blocked" in told
    assert "replanned" in told
    assert "no progress" in told
    page.keyboard.press("ArrowLeft")
    page.get_by_text("Step 0 of 2: wait").wait_for()


def test_item_is_pinned_edited_undone_and_retired(visit, ids, folder):
    """What a person does on the page is what the library has."""

    def now():
        with ExperienceLibrary.open(folder / "library.db", read_only=True) as library:
            return library.items.get(ids["insight"])

    page = visit(f"/items/{ids['insight']}")
    page.get_by_role("button", name="Pin").click()
    page.get_by_role("button", name="Unpin").wait_for()
    assert now().pinned
    page.get_by_role("button", name="Edit").click()
    fields = page.get_by_label("Its fields, as JSON")
    fields.fill(json.dumps({**json.loads(fields.input_value()), "score": 7}))
    page.get_by_role("button", name="Save").click()
    page.get_by_text("give a number in [0, 1]").wait_for()
    fields.fill(json.dumps({**json.loads(fields.input_value()), "score": 0.9, "body": "In every box."}))
    page.get_by_role("button", name="Save").click()
    page.get_by_text("In every box.").first.wait_for()
    assert (now().score, now().body) == (0.9, "In every box.")
    page.get_by_role("button", name="Undo").click()
    page.wait_for_function("!document.querySelector('dl').innerText.includes('In every box.')")
    assert now().body == "Look into every box."
    page.get_by_role("button", name="Retire").click()
    page.get_by_label("Reason, kept in the history").fill("no more apples")
    page.get_by_role("button", name="Retire this item").click()
    page.get_by_text("why: no more apples").wait_for()
    assert now().status == "retired"


def test_item_is_released_from_quarantine(visit, ids, folder):
    page = visit("/items?status=quarantined")
    page.get_by_role("link", name="A stranger's advice").click()
    page.wait_for_url(f"**/items/{ids['waiting']}")
    page.get_by_role("button", name="Release").click()
    page.get_by_label("Reason, kept in the history").fill("it was right")
    page.get_by_role("button", name="Release from quarantine").click()
    page.get_by_text("released: it was right").wait_for()
    with ExperienceLibrary.open(folder / "library.db", read_only=True) as library:
        assert library.items.get(ids["waiting"]).status == "active"


def test_colors_follow_the_system_until_a_person_chooses(chromium, url):
    """The server writes the choice into the page; contrast of text is at least 4.5 in both."""
    ground = "getComputedStyle(document.body).backgroundColor"
    context = chromium.new_context(base_url=url, color_scheme="dark")
    page = context.new_page()
    page.goto("/items?kind=insight")
    page.wait_for_selector("main h1")
    dark = page.evaluate(ground)
    grounds = [dark]
    for name in ("Light colors", "Dark colors"):
        assert page.locator("form.theme button:visible").inner_text() == name
        page.get_by_role("button", name=name).click()
        page.wait_for_load_state()
        assert page.url.endswith("/items?kind=insight")
        grounds.append(page.evaluate(ground))
    assert grounds == ["rgb(13, 17, 23)", "rgb(246, 248, 250)", "rgb(13, 17, 23)"]
    page.emulate_media(color_scheme="light")
    assert page.evaluate(ground) == "rgb(246, 248, 250)", "whoever chooses the colors of the system follows it again"
    context.close()


@pytest.fixture(scope="module")
def crowded(folder, serve):
    """A server of a library with three namespaces, one with a long name, and a lesson but no episode in another."""
    path = folder / "crowded.db"
    for name in ("default", LONG, "waiting"):
        with ExperienceLibrary.open(path, namespace=name) as library:
            if name == "waiting":
                library.add(Item("insight", "Ask for the order number", trust="untrusted", source="client"))
            else:
                library.record(Trajectory("a task", (), True))
    return serve(path)


def is_wide(page):
    return page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")


def test_a_long_namespace_fits_a_phone_and_leads_to_the_list(visit, crowded):
    """The other namespace does not have this episode: staying on its page would be an error."""
    page = visit("/episodes", at=crowded, width=390)
    page.locator("tbody a").first.click()
    page.wait_for_url("**/episodes/**")
    assert not is_wide(page)
    page.get_by_label("Namespace").select_option(LONG)
    page.get_by_role("button", name="Go").click()
    page.wait_for_url(f"**/episodes?namespace={LONG}")
    assert page.locator("main h1").inner_text() == "Episodes"
    assert not is_wide(page)


def test_lessons_that_wait_are_on_the_first_page_before_any_episode(visit, crowded):
    text = visit("/?namespace=waiting", at=crowded).locator("#main").inner_text()
    assert "Ask for the order number" in text
    assert "This library has no experience yet" in text


def test_the_lines_that_connect_an_agent_are_whole_on_a_phone(visit, folder, serve):
    with ExperienceLibrary.open(folder / "a-library-with-a-long-name-for-a-phone.db") as library:
        path = library.path
    page = visit("/", at=serve(path), width=390)
    assert page.locator("pre").count() == len(list_ways(str(path)))
    assert page.evaluate("[...document.querySelectorAll('pre')].filter(e => e.scrollWidth > e.clientWidth).length") == 0


@pytest.mark.parametrize("path", ["/nothing", "/episodes?offset=x", "/items/gu-000000000000", "/episodes/none"])
def test_error_pages_have_the_colors_of_the_system_and_links(chromium, url, path):
    page = chromium.new_context(base_url=url, color_scheme="dark").new_page()
    assert page.goto(path).status in (404, 422)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"
    page.get_by_role("link", name="Episodes").click()
    page.wait_for_url("**/episodes")
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_buttons_can_be_read(chromium, url, ids, scheme):
    """Text of at least 4.5 times the light of its ground, or the other way round."""
    page = chromium.new_context(base_url=url, color_scheme=scheme).new_page()
    page.goto("/items?status=all")
    page.wait_for_selector("main h1")
    for item in ids["guardrail"], ids["quarantined"]:
        page.goto(f"/items/{item}")
        page.get_by_role("button", name="Pin").wait_for()
        for button in page.locator(".actions .q-btn").all():
            text = read_color(button.evaluate("e => getComputedStyle(e).color"))
            ground = read_color(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            low, high = sorted((find_luminance(text), find_luminance(ground)))
            assert (high + 0.05) / (low + 0.05) >= 4.5, button.inner_text()
    page.context.close()


def read_color(text):
    return [int(part) for part in re.findall(r"\d+", text)[:3]]


def find_luminance(color):
    """Return the relative luminance of a color, as WCAG defines it."""
    parts = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in color]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def test_episode_is_forgotten_after_a_count(visit, folder):
    with ExperienceLibrary.open(folder / "library.db") as library:
        ref = library.record(Trajectory("a slip of the tongue", (), False))
    page = visit(f"/episodes/{ref}")
    page.get_by_role("button", name="Forget this episode").click()
    page.get_by_text("It cannot be undone").wait_for()
    page.get_by_role("button", name="Forget for good").click()
    page.wait_for_url("**/episodes")
    with ExperienceLibrary.open(folder / "library.db", read_only=True) as library:
        assert ref not in {row["id"] for row in library.episodes.find()}


def test_run_is_followed_while_it_writes(visit, folder):
    page = visit("/runs/coin")
    page.get_by_text("Training, iteration 4").wait_for()
    with (folder / "runs" / "coin" / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"iteration": 5, "kind": "train", "reward": 0.6, "loss": 0.1}) + "\n")
    page.get_by_text("Training, iteration 5").wait_for(timeout=5000)


def test_token_opens_it_and_a_reader_gets_no_buttons(chromium, folder, serve, ids):
    import shutil

    path = folder / "closed.db"
    shutil.copy(folder / "library.db", path)
    secret = Tokens.beside(path).add("reader")
    page = chromium.new_context(base_url=serve(path)).new_page()
    page.goto(f"/items/{ids['guardrail']}")
    page.get_by_label("Token").fill(secret)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_selector("main h1 >> text=do not")
    assert page.get_by_role("button", name="Retire").count() == 0
    page.context.close()


def test_a_person_finds_a_lesson_its_evidence_and_why_it_was_told_and_switches_it_off(visit, folder):
    """The five things that people do here, by what they see on the page."""
    page = visit("/items")
    page.fill("main input[name=text]", "raw potato")
    page.click("main button:has-text('Find')")
    page.click("main td a:has-text('raw potato')")  # 1: find a lesson
    page.wait_for_selector("h2:has-text('Why it exists')")  # 2: see its evidence
    ref = page.url.rpartition("/")[2]
    page.click("header a:has-text('Episodes')")
    page.select_option("select[name=ended]", "failed")
    page.select_option("select[name=played]", "retrieved")
    page.click("main button:has-text('Find')")  # 3: filter episodes
    page.wait_for_selector("main td .bad")
    assert page.locator("main td .good").count() == 0
    page.click("main td a >> nth=0")
    page.wait_for_selector("h2:has-text('Why was it told this')")
    page.fill("main input[name=about]", ref)
    page.click("main button:has-text('Ask')")  # 4: why was I told this
    page.wait_for_selector("main table >> text=stage")
    page.goto(f"/items/{ref}")
    page.get_by_role("button", name="Retire").click()
    page.get_by_label("Reason, kept in the history").fill("no potatoes any more")
    page.get_by_role("button", name="Retire this item").click()  # 5: switch it off
    page.get_by_text("why: no potatoes any more").wait_for()
    page.get_by_role("button", name="Undo").click()
    page.locator(".badge", has_text="active").wait_for()
