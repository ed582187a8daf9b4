"""The short answers open in the reader's language."""

import pytest

from scripts.catalog import LANGUAGES, load

ANSWERS = [answer.url for answer in load().ordered[:2]]
# Notes every language that the short answer is ever painted in.
WATCH = """window.seen = [];
const look = () => {
  const blocks = [...document.querySelectorAll(".tabbed-block[lang]")];
  const shown = blocks.find((block) => block.offsetHeight)?.lang;
  if (shown && seen.at(-1) !== shown) seen.push(shown);
  requestAnimationFrame(look);
};
look();"""


@pytest.fixture
def visit(browser):
    """Opens pages in a browser that asks for a language."""
    contexts = []

    def open_(locale):
        context = browser.new_context(locale=locale)
        context.add_init_script(WATCH)
        contexts.append(context)
        return context.new_page()

    yield open_
    for context in contexts:
        context.close()


def shown(page):
    """The language of the short answer that can be read."""
    return page.locator(".tabbed-block[lang]:visible").first.get_attribute("lang")


@pytest.mark.parametrize(
    "locale, language",
    [("zh-TW", "zh-Hans"), ("vi-VN", "vi"), ("en-GB", "en"), ("fr-FR", "en")],
)
def test_the_first_visit_follows_the_browser(visit, url, locale, language):
    page = visit(locale)
    page.goto(url + ANSWERS[0])
    assert shown(page) == language


def test_the_address_wins_and_is_kept(visit, url):
    page = visit("vi-VN")
    page.goto(f"{url}{ANSWERS[0]}?lang=zh")
    assert shown(page) == "zh-Hans"
    page.goto(url + ANSWERS[1])
    assert shown(page) == "zh-Hans"
    page.goto(f"{url}{ANSWERS[1]}?lang=en")
    assert shown(page) == "en"


def test_an_unknown_language_changes_nothing(visit, url):
    page = visit("vi-VN")
    page.goto(f"{url}{ANSWERS[0]}?lang=tlh")
    assert shown(page) == "vi"


def test_a_tab_chosen_by_hand_is_kept_on_reloading_too(visit, url):
    page = visit("en-GB")
    page.goto(f"{url}{ANSWERS[0]}?lang=zh")
    page.locator(".tabbed-labels label", has_text=LANGUAGES["vi"]).first.click()
    page.reload()
    assert shown(page) == "vi"
    page.goto(url + ANSWERS[1])
    assert shown(page) == "vi"


def test_no_other_tab_is_painted_first_on_a_slow_line(visit, url):
    page = visit("zh-CN")
    line = page.context.new_cdp_session(page)
    line.send("Network.enable")
    speed = {"downloadThroughput": 60_000, "uploadThroughput": 60_000}
    slow = {"offline": False, "latency": 50, **speed}
    line.send("Network.emulateNetworkConditions", slow)
    page.goto(url + ANSWERS[0])
    assert page.evaluate("seen") == ["zh-Hans"]
