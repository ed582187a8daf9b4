"""What a reader meets: sizes, themes, keyboard, print, no third party."""

import gzip
import json
import re
from urllib.parse import urlsplit

import pytest

from scripts import ROOT
from scripts.catalog import LANGUAGES, load
from scripts.plan import asked_id
from tests.site.conftest import HOME

BOOK = load()
ANSWERS = [answer.url for answer in BOOK.ordered]
KINDS = [
    "",
    ANSWERS[0],
    f"{BOOK.ordered[0].section}/",
    "questions/",
    "lists/rl-35/",
    "tags/",
    "paths/",
    "reference/",
    f"reference/{ANSWERS[0].rstrip('/').replace('-', '_')}/",
    "404.html",
]
PAPER_PX = 718
"""A4 without 1 cm on either side."""
FIRST_VISIT, SECOND_VISIT, REFERENCE_PAGE = 200_000, 60_000, 300_000
"""Bytes at most: compressed as sent, compressed as sent, as written."""
TOGGLE = "[data-md-component=palette] label:visible"
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", KINDS)
def test_axe_finds_no_violation(page, url, path, theme):
    page.emulate_media(color_scheme=theme)
    page.goto(url + path)
    assert violations(page) == []


def violations(page):
    """What axe-core finds on a page, a line for each rule."""
    page.add_script_tag(path=str(AXE))
    found = page.evaluate("axe.run({resultTypes: ['violations']})")
    return [f"{v['id']}: {v['nodes'][0]['html'][:120]}" for v in found["violations"]]


@pytest.mark.parametrize("path", KINDS)
def test_nothing_is_wider_than_the_window(page, url, path):
    page.goto(url + path)
    fits(page)


def fits(page, widths=(360, 768, 1366, 1600)):
    """Assert that the page needs no scrolling sideways at these widths."""
    for width in widths:
        page.set_viewport_size({"width": width, "height": 800})
        scroll = page.evaluate("document.scrollingElement.scrollWidth")
        assert scroll <= width


def fits_beside_the_margins(page):
    """Assert that at 1366 px no display and no table has to be scrolled."""
    open_all = "for (const d of document.querySelectorAll('details')) d.open = true"
    page.evaluate(open_all)
    cut = page.evaluate(
        """() => [...document.querySelectorAll("div.tex, .wide")].filter(
             box => box.offsetWidth && box.scrollWidth > box.clientWidth + 1).map(
             box => `${box.scrollWidth - box.clientWidth} px too wide: ` +
               (box.querySelector("annotation") || box).textContent.slice(0, 60))"""
    )
    assert cut == []
    page.evaluate(open_all.replace("true", "false"))


def fits_on_paper(page):
    """Assert that nothing is wider than A4, which would shrink all text."""
    page.set_viewport_size({"width": PAPER_PX, "height": 1000})
    page.emulate_media(media="print")
    size = page.evaluate(
        """() => ({
          wide: document.scrollingElement.scrollWidth,
          text: parseFloat(getComputedStyle(
            document.querySelector(".tabbed-block p")).fontSize)})"""
    )
    assert size["wide"] <= PAPER_PX + 1
    assert size["text"] == pytest.approx(10.5 * 4 / 3)
    page.emulate_media(media="screen")


def test_lines_are_readable(page, url):
    page.goto(url + ANSWERS[0])
    style = page.evaluate(
        """() => {
          const p = [...document.querySelectorAll("article p")].filter(
            p => p.offsetWidth).sort(
            (a, b) => b.textContent.length - a.textContent.length)[0];
          const s = getComputedStyle(p);
          const probe = document.createElement("span");
          probe.textContent = "the quick brown fox jumps over the lazy dog ".repeat(9);
          probe.style.cssText = "white-space:nowrap;position:absolute";
          p.append(probe);
          const letter = probe.getBoundingClientRect().width / probe.textContent.length;
          return {size: parseFloat(s.fontSize), line: parseFloat(s.lineHeight),
                  letters: p.getBoundingClientRect().width / letter};
        }"""
    )
    assert 17 <= style["size"] <= 18
    assert 1.55 <= style["line"] / style["size"] <= 1.75
    assert style["letters"] <= 78


def test_the_index_waits_until_search_is_touched(page, url):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(url + ANSWERS[0])
    page.wait_for_load_state("networkidle")
    assert not [a for a in asked if "search/index.json" in a or "minisearch" in a]
    with page.expect_request("**/search/index.json"):
        page.keyboard.press("/")


@pytest.mark.parametrize("answer", BOOK.ordered, ids=lambda a: a.slug)
def test_an_answer_page(page, url, site, answer):
    """All that each answer's page must do, in one visit."""
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    assert 80_000 < sent(page, url, answer.url, site) < FIRST_VISIT
    box = page.locator(".tabbed-block").first.locator("p").first.bounding_box()
    assert box["y"] + 80 < 768, "the short answer is below the fold"
    shows_its_parts(page, answer)
    figures_follow_the_toggle(page)
    fits_beside_the_margins(page)
    fits(page, widths=(1366, 360))
    fits_on_paper(page)
    page.evaluate(
        "for (const k of document.querySelectorAll('.katex')) k.replaceWith('x')"
    )
    assert violations(page) == []
    asks_this_site_only(page, url, asked)


def test_the_home_page_asks_this_site_only(page, url):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(url)
    asks_this_site_only(page, url, asked)


def asks_this_site_only(page, url, asked):
    """Load every image and the search; assert that nothing came from afar."""
    page.evaluate("for (const i of document.images) i.loading = 'eager'")
    with page.expect_request("**/search/index.json"):
        page.keyboard.press("/")
    page.wait_for_load_state("networkidle")
    away = [a for a in asked if not a.startswith((url, "data:", "blob:"))]
    assert asked and away == []


def figures_follow_the_toggle(page):
    """Assert that the toggle swaps light and dark figures, at once."""
    shown = "img.only-light:visible", "img.only-dark:visible"
    before = [page.locator(s).count() for s in shown]
    page.locator(TOGGLE).first.click()
    after = [page.locator(s).count() for s in shown]
    assert before == after[::-1] and sorted(before)[0] == 0
    assert page.evaluate("document.getAnimations().length") == 0


def shows_its_parts(page, answer):
    """Assert that heading, wordings, tabs, notes and sources are there."""
    meta = answer.meta
    assert page.locator("h1").inner_text().rstrip("¶ \n") == meta.question.en
    assert page.locator('.wordings [lang="zh-Hans"]').inner_text() == meta.question.zh
    assert page.locator('.wordings [lang="vi"]').inner_text() == meta.question.vi
    assert page.locator("article time").first.inner_text() == str(meta.checked)
    for name in meta.asked:
        assert (
            page.locator(
                ".asked a", has_text=re.compile(f"^{re.escape(name)}$")
            ).count()
            == 1
        )
    tabs = page.locator(".tabbed-labels").first.locator("label")
    assert tabs.all_inner_texts() == list(LANGUAGES.values())
    for label, code in zip(LANGUAGES.values(), ("en", "zh-Hans", "vi"), strict=True):
        tabs.filter(has_text=label).click()
        block = page.locator(f'.tabbed-block[lang="{code}"]').first
        assert block.is_visible() and len(block.inner_text()) > 80
    assert page.locator("details.question").count() == len(answer.follow_ups)
    assert page.locator(".admonition.wrong .verdict").count() == len(
        answer.wrong_answers
    )
    assert page.locator("ul.sources > li").count() == len(meta.sources)
    assert page.locator(".katex-error").count() == 0
    text = page.locator("article").evaluate(
        "a => { const c = a.cloneNode(true);"
        "c.querySelectorAll('pre,code,annotation').forEach(e => e.remove());"
        "return c.textContent; }"
    )
    assert "$" not in text.replace(r"\$", "") and "[@" not in text


def test_the_toggle_works_and_is_remembered(page, url):
    page.goto(url + ANSWERS[0])
    scheme = "document.body.getAttribute('data-md-color-scheme')"
    before = page.evaluate(scheme)
    page.locator(TOGGLE).first.click()
    after = page.evaluate(scheme)
    assert {before, after} == {"default", "slate"}
    page.goto(url + "questions/")
    assert page.evaluate(scheme) == after


def test_a_citation_leads_to_its_source_and_back(page, url):
    page.goto(url + ANSWERS[0])
    cite = page.locator("article a.cite[href^='#source-']").first
    target = cite.get_attribute("href")
    cite.click()
    assert page.evaluate("location.hash") == target
    page.locator(f"[id='{target[1:]}'] a.back").first.click()
    assert page.evaluate("location.hash").startswith("#cite-")


def test_everything_can_be_read_without_scripts(browser, url):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(url + ANSWERS[0])
    assert page.locator(".katex").first.is_visible()
    page.locator(".tabbed-labels label", has_text="中文").click()
    assert page.locator('.tabbed-block[lang="zh-Hans"]').is_visible()
    page.locator("details.question summary").first.click()
    assert page.locator("details.question").first.locator("p").first.is_visible()
    context.close()


def test_a_keyboard_reaches_the_text_the_tabs_and_the_follow_ups(page, url):
    page.goto(url + ANSWERS[0])
    page.keyboard.press("Tab")
    skip = page.evaluate("document.activeElement.getAttribute('href')")
    assert skip and skip.startswith("#")
    page.locator("details.question summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("details.question").first.evaluate("d => d.open")
    page.locator(".tabbed-set > input").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator('.tabbed-block[lang="zh-Hans"]').first.is_visible()


def test_printing_keeps_the_text_and_drops_the_furniture(page, url):
    page.goto(url + ANSWERS[0])
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    for gone in ("header.md-header", ".md-sidebar", "input[type=search]"):
        assert page.locator(gone + ":visible").count() == 0, gone
    closed = page.locator("details.question:not([open])").count()
    assert closed == 0
    assert len(page.pdf()) > 20_000


def test_a_list_filters_as_one_types(page, url):
    page.goto(url + "questions/")
    rows = page.locator("li.row:visible")
    total = rows.count()
    assert total == len(BOOK.wanted)
    box = page.locator(
        "main input[type=search], main input.filter, article input"
    ).first
    box.fill("ti so quan trong")
    assert 0 < rows.count() < total
    box.fill("B4")
    assert "long-tail" in rows.first.inner_text()
    assert rows.locator(".number", has_text="B4").count() == rows.count()
    box.fill("")
    assert rows.count() == total


@pytest.mark.parametrize("name", list(BOOK.lists))
def test_a_list_keeps_the_order_of_those_who_asked(page, url, name):
    page.goto(f"{url}lists/{name}/")
    wanted = [
        asked_id(letter, n)
        for letter in BOOK.lists[name]["parts"]
        for n in range(1, len(BOOK.plan.parts[letter]) + 1)
    ]
    assert page.locator(".row .number").all_inner_texts() == wanted
    for row in page.locator("li.row").all():
        dead = "unanswered" in row.get_attribute("class")
        assert (row.locator("a.ask").count() == 0) == dead
        assert ("Not answered yet" in row.inner_text()) == dead


def test_the_home_page_fits_a_screen_and_leads_on(page, url):
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(url)
    assert page.locator("main input[type=search]:visible").count() >= 1
    height = page.locator("main").bounding_box()
    assert height["y"] + height["height"] <= 1000
    for section in BOOK.sections:
        assert page.locator(f"main a[href='{section}/']").count() >= 1
    for target in ("questions/", "paths/", "lists/rl-35/"):
        assert page.locator(f"main a[href^='{target}']").count() >= 1
    assert page.locator("main pre code").count() >= 1
    assert page.locator("main .figure img:visible").count() >= 1


def test_a_function_and_its_answer_lead_to_each_other(page, url):
    answer = BOOK.ordered[0]
    page.goto(url + answer.url)
    page.locator(".made-by a[href*='#snippets.']").first.click()
    page.wait_for_url("**/reference/**#snippets.*")
    anchor = page.url.partition("#")[2]
    assert page.locator(f"[id='{anchor}']").count() == 1
    back = page.locator(".shown-in a", has_text=answer.meta.title).first
    back.click()
    page.wait_for_url(f"{url}{answer.url}**")


def test_an_unknown_address_says_so(page, url):
    page.goto(url + "404.html")
    assert page.locator("main a").count() >= 1


def test_json_is_where_the_readme_says(page, url):
    answer = page.request.get(url + "questions.json")
    assert len(json.loads(answer.text())["questions"]) == len(BOOK.answers)


def sent(page, url, path, site):
    """Bytes that opening a page takes, text compressed as servers do."""
    cached, replies = set(), {}
    listener = page.context.new_cdp_session(page)
    listener.send("Network.enable")
    listener.on("Network.requestServedFromCache", lambda e: cached.add(e["requestId"]))
    listener.on(
        "Network.responseReceived",
        lambda e: replies.update({e["requestId"]: e["response"]}),
    )
    page.goto(url + path)
    page.wait_for_load_state("networkidle")
    listener.detach()
    total = 0
    for name, reply in replies.items():
        if name in cached or reply["fromDiskCache"] or reply["status"] != 200:
            continue
        file = site / urlsplit(reply["url"]).path.lstrip("/")
        data = (file / "index.html" if file.is_dir() else file).read_bytes()
        ready = file.suffix in (".woff2", ".png")
        total += len(data if ready else gzip.compress(data))
    return total


def test_the_second_answer_is_light(page, url, site):
    heavy = sorted(ANSWERS, key=lambda a: (site / a / "index.html").stat().st_size)
    page.goto(url + heavy[-1])
    page.wait_for_load_state("networkidle")
    assert 10_000 < sent(page, url, heavy[-2], site) < SECOND_VISIT


def test_no_page_of_the_reference_is_heavy(site):
    pages = {p: p.stat().st_size for p in site.glob("reference/**/index.html")}
    assert len(pages) > 3
    assert [str(p) for p, size in pages.items() if size > REFERENCE_PAGE] == []


@pytest.mark.parametrize("path", KINDS[:-1])
def test_a_link_to_a_page_says_what_it_is(page, url, site, path):
    page.goto(url + path)
    meta = page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll("meta[content]")]
          .map(m => [m.getAttribute("property") || m.name, m.content]))"""
    )
    canonical = page.locator("link[rel=canonical]").get_attribute("href")
    assert canonical == meta["og:url"] == HOME + path
    assert len(meta["description"]) > 20
    assert meta["og:description"] == meta["description"]
    assert meta["og:title"] and meta["twitter:card"] == "summary_large_image"
    picture = site / meta["og:image"].removeprefix(HOME)
    assert picture.suffix == ".png" and picture.exists()


def test_the_title_of_an_answer_is_its_question(page, url):
    answer = BOOK.ordered[0]
    page.goto(url + answer.url)
    assert page.title().startswith(answer.meta.question.en)
    assert answer.slug in page.locator("meta[property='og:image']").get_attribute(
        "content"
    )


def test_a_formula_keeps_its_comma_on_a_phone(page, url):
    torn = """() => {
      const box = node => {
        const range = document.createRange();
        range.selectNode(node);
        return range.getBoundingClientRect();
      };
      return [...document.querySelectorAll(".held, .trailed")].filter(held => {
        if (!held.offsetWidth) return false;
        const bases = [...held.querySelectorAll(".katex-base")].map(box);
        const before = held.firstChild, after = held.lastChild;
        return (before.nodeType === Node.TEXT_NODE && box(before).bottom < bases[0].top)
          || (!after.matches?.(".tex") && box(after).top > bases.at(-1).bottom);
      }).map(held => held.textContent);
    }"""
    held = 0
    for answer in ANSWERS[:6]:
        page.goto(url + answer)
        for width in (360, 390, 430):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate(torn) == [], (answer, width)
        held += page.locator(".held, .trailed").count()
    assert held > 50


def test_every_page_of_a_phone_leads_home_and_to_the_lists(page, url):
    page.set_viewport_size({"width": 360, "height": 740})
    for path in KINDS:
        page.goto(url + path)
        page.locator(".menu summary").click()
        places = page.locator(".menu-places a")
        assert places.first.is_visible()
        texts = places.all_inner_texts()
        lists = [plan["short"] for plan in BOOK.lists.values()]
        assert texts == [
            "Home",
            "All questions",
            *lists,
            "Reading paths",
            "Tags",
            "Code",
        ]


def test_a_wide_table_keeps_its_first_column_on_a_phone(page, url):
    page.set_viewport_size({"width": 360, "height": 740})
    for answer in ANSWERS:
        page.goto(url + answer)
        table = page.locator(".wide.scrolls:visible").first
        if table.count():
            break
    first = table.locator("tbody tr").first.locator("td, th").first
    left = first.bounding_box()["x"]
    moved = table.evaluate("t => { t.scrollLeft = 90; return t.scrollLeft; }")
    assert moved > 20
    assert first.bounding_box()["x"] == pytest.approx(left, abs=1)
    hint = table.evaluate("t => getComputedStyle(t, '::before').content")
    assert "scroll" in hint


def test_the_chosen_language_is_marked_in_forced_colours(page, url):
    page.emulate_media(forced_colors="active")
    page.goto(url + ANSWERS[0])
    marks = (
        page.locator(".tabbed-labels")
        .first.locator("label")
        .evaluate_all("all => all.map(l => getComputedStyle(l).borderBottomColor)")
    )
    assert len(marks) == 3 and marks[0] != marks[1] == marks[2]


def test_text_of_a_figure_can_be_read_on_a_phone(page, url):
    page.set_viewport_size({"width": 360, "height": 740})
    answer = next(a for a in BOOK.ordered if a.images)
    page.goto(url + answer.url)
    image = page.locator(".figure img:visible").first
    image.scroll_into_view_if_needed()
    page.wait_for_function(
        "i => i.complete && i.currentSrc", arg=image.element_handle()
    )
    assert ".narrow-" in image.evaluate("i => i.currentSrc")
    drawn = image.evaluate("i => i.naturalWidth")
    assert image.bounding_box()["width"] >= drawn - 1  # at its own size or larger


def test_the_file_behind_a_block_of_code_is_served(page, url):
    page.goto(url + ANSWERS[0])
    links = page.locator(".made-by a[href$='.py']")
    addresses = {a.evaluate("a => a.href") for a in links.all()}
    assert any("/code/tests/" in a for a in addresses)
    for address in addresses:
        reply = page.request.get(address)
        assert reply.ok and reply.text().startswith('"""')
