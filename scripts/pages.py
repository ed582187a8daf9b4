"""Turns answers and the plan into the Markdown of the site's pages."""

import html
import itertools
import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from scripts import prose, reference
from scripts.catalog import LANGUAGES, PRODUCT, Answer, Book, Wanted
from scripts.reference import link, relative
from scripts.search_index import split_sentences

LANG_TAGS = {"en": "en", "zh": "zh-Hans", "vi": "vi"}
WORDS_A_MINUTE = 180
EVENING_MINUTES = 150
PHONE = "30em"
"""Widest window that gets the narrow drawing of a figure."""
DESCRIPTION = 200
"""Characters of a page's description."""
PATHS = {
    "evening": (
        "One evening",
        "What is asked most and what other answers rest on.",
    ),
    "algorithms": (
        "Algorithms",
        "Objectives, rewards, KL and entropy, in the order they build on.",
    ),
    "infrastructure": (
        "Infrastructure",
        "Rollouts, memory, parallelism and numerics, likewise.",
    ),
}
FENCE_WITH_EMBED = re.compile(
    r'^(?P<indent>[ \t]*)```python[^\n]*\n[ \t]*--8<-- "(?P<path>[^":\n]+)'
    r':(?P<section>[\w-]+)"[ \t]*\n[ \t]*```[ \t]*$',
    re.M,
)
FORMULA_HEAD = re.compile(
    r'<th[^>]*><span class="tex">(?:(?!</th>).)*?'
    r"<annotation[^>]*>(?P<tex>.*?)</annotation>(?:(?!</th>).)*</th>"
)
FIGURE_SIZE = re.compile(r'<svg [^>]*?width="([\d.]+)pt" height="([\d.]+)pt"')


def asked_url(book: Book, name: str) -> str:
    """Where an asked id stands in its list."""
    return f"lists/{book.place(name).list_id}/#{name.replace('.', '-').lower()}"


def minutes(answer: Answer) -> int:
    """Reading time of an answer in minutes, at least 1."""
    return max(1, round(_words(answer.body) / WORDS_A_MINUTE))


@cache
def _words(body: str) -> int:
    return len(re.findall(r"[\w’']+", prose.FENCE.sub("", body)))


# --- an answer -----------------------------------------------------------


def compose(book: Book, answer: Answer, out: Path) -> str:
    """The Markdown of an answer's page: head, body, foot."""
    body = body_markdown(book, answer.body, answer.url, out)
    return f"{head(book, answer)}\n\n{body}\n\n{foot(book, answer)}\n"


def body_markdown(book: Book, body: str, url: str, out: Path) -> str:
    """Citations, figures and embedded code of a page, written out."""
    body = cite(book, body)
    body = draw(body, url, out)
    return credit(book, body, url)


def description(answer: Answer) -> str:
    """What a search engine shows: the short answer's first sentences in plain words."""
    text = prose.plain(answer.short_answer.get("en", ""))
    kept = ""
    for sentence in split_sentences(text):
        if "$" in sentence:
            continue
        if kept and len(kept) + len(sentence) > DESCRIPTION:
            break
        kept = f"{kept} {sentence}".strip()
    return kept or answer.meta.question.en


def head(book: Book, answer: Answer) -> str:
    """The question in three languages, where it was asked, when checked."""
    meta, url = answer.meta, answer.url
    asked = ", ".join(
        link(url, asked_url(book, name), name, title=_list_title(book, name))
        for name in meta.asked
    )
    tags = " ".join(link(url, f"tags/#{tag}", tag, class_="tag") for tag in meta.tags)
    parts = [f'<span class="asked">Asked as {asked}</span>'] if asked else []
    parts += [
        f'<span class="checked">Checked <time datetime="{meta.checked}">'
        f"{meta.checked}</time></span>",
        f'<span class="minutes">{minutes(answer)} min</span>',
        f'<span class="tags">{tags}</span>',
    ]
    return (
        f"# {meta.question.en}\n\n"
        '<div class="wordings">\n'
        f'<p lang="zh-Hans">{html.escape(meta.question.zh)}</p>\n'
        f'<p lang="vi">{html.escape(meta.question.vi)}</p>\n'
        "</div>\n\n"
        f'<p class="about">{" ".join(parts)}</p>'
    )


def _list_title(book: Book, name: str) -> str:
    return book.lists[book.place(name).list_id]["title"]


def foot(book: Book, answer: Answer) -> str:
    """Builds on, read next, linked from, sources."""
    blocks = []
    if base := [book.sound[s] for s in answer.meta.builds_on if s in book.sound]:
        blocks.append("## Builds on { .foot }\n\n" + _bullets(answer, base))
    if after := read_next(book, answer):
        blocks.append("## Read next { .foot }\n\n" + _bullets(answer, after))
    if links := book.linked_from(answer.slug):
        lines = [
            f"- [{other.meta.title}]({_md(answer, other)})"
            + (f": {one.sentence}" if one.sentence else "")
            for other, one in links
        ]
        blocks.append(
            "## Linked from { .foot }\n\n" + "\n".join(lines) + "\n{ .linked-from }"
        )
    blocks.append("## Sources { .foot }\n\n" + sources(book, answer))
    return "\n\n".join(blocks)


def read_next(book: Book, answer: Answer) -> list[Answer]:
    """Answers that build on this one, then its neighbour in the section."""
    found = [a for a in book.ordered if answer.slug in a.meta.builds_on]
    own = [a for a in book.ordered if a.section == answer.section]
    after = own[own.index(answer) + 1 :][:1]
    return found + [a for a in after if a not in found]


def _md(answer: Answer, other: Answer) -> str:
    return f"../{other.section}/{other.slug}.md"


def _bullets(answer: Answer, others: list[Answer]) -> str:
    return "\n".join(
        f"- [{o.meta.title}]({_md(answer, o)}): {o.meta.question.en}" for o in others
    )


def sources(book: Book, answer: Answer) -> str:
    """The sources of a page, each with links back to where it is cited."""
    counts = Counter(c.key for c in answer.citations if c.key in book.sources)
    items = []
    for key in sorted(counts, key=lambda k: book.sources[k].label.lower()):
        s = book.sources[key]
        back = " ".join(
            f'<a href="#cite-{key}-{i}" class="back" '
            f'aria-label="Citation {i} of {html.escape(s.label)}">'
            f"↩{i if counts[key] > 1 else ''}</a>"
            for i in range(1, counts[key] + 1)
        )
        authors = _authors(s.authors)
        year = f" ({s.year})" if s.year else ""
        who = f"{html.escape(authors)}{year}. " if authors else ""
        href = f"{s.url}/tree/{s.commit}" if s.commit else s.url
        when = f", {s.year}" if s.year else ""
        note = f" at commit <code>{s.commit[:10]}</code>{when}" if s.commit else ""
        items.append(
            f'<li id="source-{key}">{who}<a href="{html.escape(href)}">'
            f"{html.escape(s.title)}</a>{note}. {back}</li>"
        )
    return '<ul class="sources">\n' + "\n".join(items) + "\n</ul>"


def _authors(names: tuple[str, ...]) -> str:
    if "others" in names:
        return f"{names[0]} et al."
    return (
        ", ".join(names[:-1]) + " and " + names[-1]
        if len(names) > 1
        else "".join(names)
    )


def cite(book: Book, body: str) -> str:
    """[@key, place] becomes a link that shows author and year."""
    counts: Counter = Counter()
    clear = prose.without_code(body)
    pieces, at = [], 0
    for m in prose.CITATION.finditer(clear):
        source = book.sources.get(m["key"])
        if not source:
            continue
        counts[source.key] += 1
        text, href = source.link((m["place"] or "").strip())
        mark = f"cite-{source.key}-{counts[source.key]}"
        anchor = f"<a href='{html.escape(href)}' id='{mark}' class='cite'>"
        shown = html.escape(text).replace("_", "&#95;").replace("*", "&#42;")
        pieces += [body[at : m.start()], f"{anchor}{shown}</a>"]
        at = m.end()
    return "".join([*pieces, body[at:]])


def draw(body: str, url: str, out: Path) -> str:
    """An image of a figure function becomes its light and dark drawings."""
    clear = prose.without_code(body)
    pieces, at = [], 0
    for m in prose.IMAGE.finditer(clear):
        if not PRODUCT.fullmatch(m["target"]):
            continue
        alt = body[m.start("alt") : m.end("alt")]
        pieces += [body[at : m.start()], _images(m["target"], alt, url, out)]
        at = m.end()
    return "".join([*pieces, body[at:]])


def _images(target: str, alt: str, url: str, out: Path) -> str:
    stem = target.removesuffix(".svg")
    found = []
    for theme in ("light", "dark"):
        narrow = _drawing(stem, f"narrow-{theme}", url, out)
        wide = _drawing(stem, theme, url, out)
        found.append(
            f'<picture><source media="(max-width: {PHONE})" srcset={narrow}>'
            f'<img src={wide} alt="{html.escape(alt)}" class="only-{theme}"'
            ' loading="lazy"></picture>'
        )
    return f'<span class="figure" data-made-by="{stem}">{"".join(found)}</span>'


def _drawing(stem: str, drawing: str, url: str, out: Path) -> str:
    """Address and size in pixels of one drawing, as attributes."""
    file = out / f"{stem}.{drawing}.svg"
    size = FIGURE_SIZE.search(file.read_text(encoding="utf-8")[:2000])
    width, height = (round(float(x) * 4 / 3) for x in size.groups())
    source = relative(url, f"figures/{stem}.{drawing}.svg")
    return f'"{source}" width="{width}" height="{height}"'


def credit(book: Book, body: str, url: str) -> str:
    """Under each embedded section: links to its functions in the reference."""
    modules = book.modules

    def add(m: re.Match) -> str:
        name = m["path"].removesuffix(".py")
        module = modules.get(name)
        names = module.within(m["section"]) if module else []
        links = ", ".join(reference.function_link(url, name, n) for n in names)
        links = links or html.escape(m["section"])
        line = (
            f'<p class="made-by">{links} in '
            f"{reference.file_link(url, f'snippets/{name}.py')}, tested by "
            f"{reference.file_link(url, reference.test_path(name))}</p>"
        )
        return f"{m[0]}\n\n{m['indent']}{line}\n"

    return FENCE_WITH_EMBED.sub(add, body)


def finish(page: str, url: str) -> str:
    """Last touches on an answer's HTML that Markdown cannot express."""
    page = re.sub(
        r'(<div class="admonition wrong">\s*<p class="admonition-title">)',
        r'\1<span class="verdict">Wrong</span> ',
        page,
    )
    page = re.sub(r"<th([^>]*)></th>", r"<td\1></td>", page)
    number = itertools.count(1)
    page = re.sub(
        r'<details class="question"',
        lambda m: f'<details id="follow-up-{next(number)}" class="question"',
        page,
    )
    page = _credit_figures(page, url)
    for code in LANGUAGES:
        tag, name = LANG_TAGS[code], LANGUAGES[code]
        page = re.sub(
            rf"(<label [^>]*)>{name}<",
            rf'\1 lang="{tag}">{name}<',
            page,
            count=1,
        )
    first = page.find('<div class="tabbed-content">')
    if first >= 0:
        tags = iter(LANG_TAGS.values())
        head, tail = page[:first], page[first:]
        tail = re.sub(
            r'<div class="tabbed-block">',
            lambda m: f'<div class="tabbed-block" lang="{next(tags)}">',
            tail,
            count=len(LANG_TAGS),
        )
        page = head + tail
    page = re.sub(r"<th([^>]*)></th>", r"<td\1></td>", page)
    page = FORMULA_HEAD.sub(_name_formula, page)
    return re.sub(
        r"(<table>.*?</table>)",
        r'<div class="wide" tabindex="0" role="group" aria-label="Table">\1</div>',
        page,
        flags=re.S,
    )


def _name_formula(m: re.Match) -> str:
    """A header cell that is one formula, named so that every reader has it."""
    tex = html.escape(html.unescape(m["tex"]))
    return m[0].replace("<math ", f'<math aria-label="{tex}" ', 1)


def _credit_figures(page: str, url: str) -> str:
    def add(m: re.Match) -> str:
        stem = re.search(r'data-made-by="([^"]+)"', m[0])
        if not stem:
            return m[0]
        module, _, function = stem[1].partition(".")
        drawn = reference.function_link(url, module, function)
        made = f'<p class="made-by">Drawn by {drawn}</p>'
        return m[0].replace("</figcaption>", f"{made}</figcaption>")

    return re.sub(r"<figure.*?</figure>", add, page, flags=re.S)


# --- lists ---------------------------------------------------------------


def row(book: Book, page: str, wanted: Wanted, number: str = "") -> str:
    """One question of a list: number, question, title, tags, or "not yet"."""
    answer = book.sound.get(wanted.slug)
    words = " ".join([wanted.slug, wanted.question.zh, wanted.question.vi])
    anchor = f' id="{number.replace(".", "-").lower()}"' if number else ""
    shown = number or ", ".join(wanted.asked)
    if answer:
        tags = " ".join(
            link(page, f"tags/#{t}", t, class_="tag") for t in answer.meta.tags
        )
        words += " " + answer.meta.title
        text = (
            link(page, answer.url, wanted.question.en, class_="ask")
            + ' <span class="row-about">'
            + f"{html.escape(answer.meta.title)} {tags}</span>"
        )
        state = ""
    else:
        text = (
            f'<span class="ask">{html.escape(wanted.question.en)}</span> '
            '<span class="row-about">Not answered yet</span>'
        )
        state = " unanswered"
    return (
        f'<li class="row{state}"{anchor} data-words="{html.escape(words)}">'
        f'<span class="number">{shown}</span><div>{text}</div></li>'
    )


def rows(items: Iterable[str]) -> str:
    """A list that the page's filter works on."""
    return '<ol class="rows" data-filter>\n' + "\n".join(items) + "\n</ol>"


def count(book: Book, wanted: list[Wanted]) -> str:
    """For example "2 of 15 answered"."""
    done = sum(w.slug in book.sound for w in wanted)
    return f"{done} of {len(wanted)} answered"


def in_section(book: Book, section: str) -> list[Wanted]:
    """A section's questions: answers in reading order, then the rest."""
    wanted = [w for w in book.wanted.values() if w.section == section]
    order = [a.slug for a in book.ordered]
    own = [
        Wanted(a.slug, section, tuple(a.meta.asked), a.meta.question)
        for a in book.ordered
        if a.section == section and a.slug not in book.wanted
    ]
    return sorted(
        wanted + own,
        key=lambda w: order.index(w.slug) if w.slug in order else len(order),
    )


def section_page(book: Book, section: str) -> str:
    """The landing page of a section."""
    plan, wanted = book.sections[section], in_section(book, section)
    body = rows(row(book, f"{section}/", w) for w in wanted)
    return f"# {plan['title']}\n\n{count(book, wanted)}.\n{{ .count }}\n\n{body}\n"


def questions_page(book: Book) -> str:
    """All questions, by section."""
    wanted = list(book.wanted.values())
    asked = sum(len(w.asked) for w in wanted)
    parts = [
        "# All questions",
        f"{asked} asked questions on {len(wanted)} pages; "
        f"{count(book, wanted)}.\n{{ .count }}",
    ]
    for section, plan in book.sections.items():
        own = in_section(book, section)
        body = rows(row(book, "questions/", w) for w in own)
        parts += [f"## {plan['title']} {{ #{section} }}", body]
    return "\n\n".join(parts) + "\n"


def list_page(book: Book, list_id: str) -> str:
    """One of the lists that asked, in its own order."""
    plan, url = book.lists[list_id], f"lists/{list_id}/"
    parts, total = [], []
    for letter, part in plan["parts"].items():
        found = list(book.plan.parts[letter].values())
        total += [wanted for _, wanted in found]
        if len(plan["parts"]) > 1 and found:
            first, last = found[0][0], found[-1][0]
            parts.append(f"## {part['title']} ({first}–{last})")
        parts.append(rows(row(book, url, wanted, name) for name, wanted in found))
    head_ = f"# {plan['title']}\n\n{count(book, total)}.\n{{ .count }}"
    return "\n\n".join([head_, *parts]) + "\n"


def tags_page(book: Book) -> str:
    """Every tag with its answers."""
    tags: dict[str, list[Answer]] = {}
    for answer in book.ordered:
        for tag in answer.meta.tags:
            tags.setdefault(tag, []).append(answer)
    parts = ["# Tags"]
    for tag in sorted(tags):
        lines = [
            f"- [{a.meta.question.en}]({a.section}/{a.slug}.md)" for a in tags[tag]
        ]
        parts += [f"## {tag} {{ #{tag} }}", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


# --- reading paths -------------------------------------------------------


def paths(book: Book) -> dict[str, list[Answer]]:
    """The three reading paths, from what was asked and what builds on what."""

    def on(path: str) -> list[Answer]:
        own = [a for a in book.ordered if book.sections[a.section]["path"] == path]
        return based_first(book, own)

    def weight(answer: Answer) -> tuple:
        built = sum(answer.slug in a.meta.builds_on for a in book.ordered)
        linked = len(book.linked_from(answer.slug))
        return -(2 * len(answer.meta.asked) + 2 * built + linked), answer.slug

    evening, left = [], EVENING_MINUTES
    for answer in sorted(book.ordered, key=weight):
        if minutes(answer) <= left:
            evening.append(answer)
            left -= minutes(answer)
    evening = based_first(book, [a for a in book.ordered if a in evening])
    return {
        "evening": evening,
        "algorithms": on("algorithms"),
        "infrastructure": on("infrastructure"),
    }


def based_first(book: Book, answers: list[Answer]) -> list[Answer]:
    """The answers, each after those of them it builds on; else order kept."""
    done: list[Answer] = []

    def add(answer: Answer) -> None:
        for slug in answer.meta.builds_on:
            base = book.sound.get(slug)
            if base in answers and base not in done:
                add(base)
        if answer not in done:
            done.append(answer)

    for answer in answers:
        add(answer)
    return done


def paths_page(book: Book) -> str:
    """The reading paths with their answers and reading times."""
    parts = [
        "# Reading paths",
        "Put together by the build from what was asked, how often, and what "
        "each answer builds on; they grow as answers are added.",
    ]
    for name, answers in paths(book).items():
        title, about = PATHS[name]
        total = sum(minutes(a) for a in answers)
        lines = [
            f"1. [{a.meta.title}]({a.section}/{a.slug}.md) ({minutes(a)} min): "
            f"{a.meta.question.en}"
            for a in answers
        ]
        parts += [f"## {title} {{ #{name} }}", f"{about} {total} minutes."]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


# --- everything ----------------------------------------------------------


def generated(book: Book) -> dict[str, str]:
    """Markdown of every page that no file in docs/ holds, by source path."""
    pages = {
        "questions.md": questions_page(book),
        "paths.md": paths_page(book),
        "tags.md": tags_page(book),
        "reference.md": reference.index(book),
    }
    for section in book.sections:
        pages[f"{section}/index.md"] = section_page(book, section)
    for list_id in book.lists:
        pages[f"lists/{list_id}.md"] = list_page(book, list_id)
    for name, module in book.modules.items():
        pages[f"reference/{name}.md"] = reference.page(book, module)
    return pages


def navigation(book: Book) -> list:
    """The menu: home, lists, sections with their answers, reference."""
    menu: list = [
        {"Home": "index.md"},
        {
            "Questions": [
                {"All questions": "questions.md"},
                *({p["short"]: f"lists/{i}.md"} for i, p in book.lists.items()),
                {"Reading paths": "paths.md"},
                {"Tags": "tags.md"},
            ]
        },
    ]
    for section, plan in book.sections.items():
        pages = [f"{section}/index.md"]
        pages += [
            {a.meta.title: f"{a.section}/{a.slug}.md"}
            for a in book.ordered
            if a.section == section
        ]
        menu.append({plan["title"]: pages})
    code = [
        {
            book.sections[section]["title"]: [
                {m.name.partition("/")[2]: f"reference/{m.name}.md"} for m in modules
            ]
        }
        for section, modules in reference.by_section(book).items()
    ]
    menu.append({"Code reference": ["reference.md", *code]})
    return menu


def shell(book: Book) -> dict:
    """What the home page's and the margins' templates know of the book."""
    sections = [
        {
            "title": plan["title"],
            "url": f"{section}/",
            "answered": sum(w.slug in book.sound for w in in_section(book, section)),
            "total": len(in_section(book, section)),
        }
        for section, plan in book.sections.items()
    ]
    walks = [
        {
            "id": name,
            "title": PATHS[name][0],
            "about": PATHS[name][1],
            "minutes": sum(minutes(a) for a in answers),
            "answers": [_card(a) for a in answers],
        }
        for name, answers in paths(book).items()
    ]
    lists = [
        {
            "title": plan["title"],
            "short": plan["short"],
            "url": f"lists/{name}/",
        }
        for name, plan in book.lists.items()
    ]
    return {
        "sections": sections,
        "paths": walks,
        "lists": lists,
        "answered": len(book.sound),
        "pages": len(book.wanted),
        "asked": sum(len(w.asked) for w in book.wanted.values()),
    }


def _card(answer: Answer) -> dict[str, str]:
    return {
        "title": answer.meta.title,
        "url": answer.url,
        "question": answer.meta.question.en,
        "minutes": str(minutes(answer)),
    }


def margin(book: Book, answer: Answer) -> dict:
    """What the margin of an answer shows beside its contents."""
    base = [book.sound[s] for s in answer.meta.builds_on if s in book.sound]
    return {
        "builds_on": [_card(a) for a in base],
        "linked_from": [_card(a) for a, _ in book.linked_from(answer.slug)],
        "slug": answer.slug,
        "section": answer.section,
        "question": answer.meta.question.model_dump(),
        "checked": str(answer.meta.checked),
    }
