"""The search finds every question, however it is typed. Runs under node.

The index holds the texts of all questions and some filler, no aliases and no
answers: what is found here is found before a single answer is written.
"""

import functools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from scripts.search_index import Document, build

ROOT = Path(__file__).parents[2]
CORE = ROOT / "theme" / "assets" / "search-core.js"
MINISEARCH = ROOT / "node_modules" / "minisearch" / "dist" / "es" / "index.js"
QUERIES = ROOT / "tests" / "site" / "search_queries.yml"
FILLER = """
<h2 id="short-answer">Short answer</h2>
<p>The policy is trained on rewards, and the loss of the model falls. 模型的训练。</p>
"""
# Called with the data on standard input: {"names", "passages", "calls": [[name,
# ...args]]}, where the argument "index" of `search` is filled in. Prints the
# returns.
SCRIPT = """
import { text } from "node:stream/consumers";
import { pathToFileURL } from "node:url";
const [core, { default: MiniSearch }] = await Promise.all(
  process.argv.slice(1).map((path) => import(pathToFileURL(path))),
);
const { names, passages, calls } = JSON.parse(await text(process.stdin));
const index = await core.buildIndex(MiniSearch, names, passages);
const returns = calls.map(([name, ...args]) =>
  name === "search" ? core.search(index, ...args) : core[name](...args),
);
console.log(JSON.stringify(returns));
"""


def run(documents: list[Document], calls: list[list], whole: bool = True) -> list:
    """Return what each call of a function of search-core.js returns.

    Args:
        documents: What is in the index.
        calls: Names of functions with their arguments.
        whole: Whether the passages are there, too.
    """
    names, passages = build(documents)
    assert MINISEARCH.exists(), f"{MINISEARCH} is missing: run `make setup`"
    beside = Path(sys.executable).with_name("node")
    node = str(beside) if beside.exists() else shutil.which("node")
    assert node, "node is missing: run `make setup`"
    done = subprocess.run(
        [node, "--input-type=module", "-e", SCRIPT, str(CORE), str(MINISEARCH)],
        input=json.dumps(
            {"names": names, "passages": passages if whole else {}, "calls": calls}
        ),
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@functools.cache
def questions() -> dict[str, dict[str, str]]:
    """Return the three wordings of each question by its slug."""
    text = (ROOT / "docs" / "questions.yml").read_text(encoding="utf-8")
    sections = yaml.safe_load(text)
    return {
        entry["slug"]: {language: entry[language] for language in ("en", "zh", "vi")}
        for entries in sections.values()
        for entry in entries
    }


@functools.cache
def all_pages() -> list[Document]:
    """Return a page for every question."""
    return [
        Document(slug, "Section", slug.replace("-", " "), wordings, html=FILLER)
        for slug, wordings in questions().items()
    ]


def misses(queries: list[tuple[str, str]]) -> list[str]:
    """Return a line for each query whose page does not come first."""
    results = run(all_pages(), [["search", query] for query, _ in queries])
    first = [found[0]["url"] if found else "nothing" for found in results]
    return [
        f"{query!r} finds {url}, not {slug}"
        for (query, slug), url in zip(queries, first, strict=True)
        if url != slug
    ]


def page(**changes) -> Document:
    """Return a page about nothing much."""
    fields = {
        "url": "a/",
        "section": "Section",
        "title": "Title",
        "question": {"en": "What is it?", "zh": "这是什么？", "vi": "Đây là gì?"},
    }
    return Document(**{**fields, **changes})


def found(documents: list[Document], query: str, **options) -> list[dict]:
    """Return what one query finds."""
    return run(documents, [["search", query]], **options)[0]


def pasted() -> list[tuple[str, str]]:
    return [
        (text, slug)
        for slug, wordings in questions().items()
        for text in wordings.values()
    ]


@pytest.mark.parametrize(
    "paste",
    [
        str,
        pytest.param(lambda text: f"  {text}\n", id="with spaces"),
        pytest.param(lambda text: text.rstrip("?？.。"), id="without its end"),
        pytest.param(lambda text: f"12. {text}", id="with its number"),
        pytest.param(str.upper, id="in capitals"),
    ],
)
def test_a_pasted_question_comes_first(paste):
    assert misses([(paste(text), slug) for text, slug in pasted()]) == []


def test_words_of_a_question_in_another_order_find_it():
    queries = [(" ".join(reversed(text.split())), slug) for text, slug in pasted()]
    assert misses(queries) == []


def groups() -> dict[str, list[dict]]:
    return yaml.safe_load(QUERIES.read_text(encoding="utf-8"))


@pytest.mark.parametrize("group", groups())
def test_typed_queries(group):
    queries = [(entry["q"], entry["slug"]) for entry in groups()[group]]
    unknown = {slug for _, slug in queries} - questions().keys()
    assert not unknown, f"{QUERIES.name} names unknown questions"
    assert misses(queries) == []


def test_a_query_without_words_finds_nothing():
    calls = [["search", query] for query in ("", "   ", "?!", "…")]
    assert run(all_pages(), calls) == [[], [], [], []]


def test_a_query_of_words_that_say_little_still_finds_something():
    calls = [["search", query] for query in ("how does it work", "是什么", "là gì")]
    assert all(run(all_pages(), calls))


def test_unknown_words_find_nothing():
    assert run(all_pages(), [["search", "zzxxqq"]]) == [[]]


def test_typos_are_allowed_in_long_words_only():
    pages = [page(aliases={"en": ["entropy", "ratio"]})]
    calls = [["search", query] for query in ("entrapy ", "ratzo ")]
    long, short = run(pages, calls)
    assert long and not short


@pytest.mark.parametrize("alias", ["schulman estimator", "低方差", "tràn bộ nhớ"])
def test_an_alias_beats_a_page_that_repeats_it(alias):
    other = page(url="b/", html=f"<p>{f'{alias}. ' * 50}</p>")
    named = page(url="a/", aliases={"en": [alias]})
    (results,) = run([other, named], [["search", alias]])
    assert [result["url"] for result in results] == ["a/", "b/"]


def test_the_last_word_may_be_unfinished():
    results = run(all_pages(), [["search", "Megatron FSDP over"]])[0]
    assert results[0]["url"] == "long-context-overlap"


def test_two_spellings_are_one_word():
    pairs = [
        ("optimise", "optimize"),
        ("normalisation", "normalization"),
        ("analyse", "analyze"),
        ("colour", "color"),
        ("behaviour", "behavior"),
        ("modelling", "modeling"),
        ("centre", "center"),
        ("licence", "license"),
        ("catalogue", "catalog"),
        ("programme", "program"),
        ("judgement", "judgment"),
        ("artefact", "artifact"),
        ("grey", "gray"),
    ]
    british, american = (
        run([], [["tokenize", word] for word in words])
        for words in zip(*pairs, strict=True)
    )
    for pair, one, other in zip(pairs, british, american, strict=True):
        assert one[0]["forms"] == other[0]["forms"], pair


def test_words_and_their_forms():
    expected = {
        "优势函数": ["优", "势", "优势", "函", "势函", "数", "函数"],
        "的": ["的"],
        "PPO的clip": ["ppo", "的", "clip"],
        "tỉ": ["tỉ", "ti"],
        "đuôi": ["đuôi", "duoi"],
        "off-policy": ["off", "policy", "offpolicy"],
        "seq_len": ["seq", "len", "seqlen"],
        "FlashAttention": ["flash", "attention", "flashattention"],
        "RMSNorm": ["rms", "norm", "rmsnorm"],
        "LLMs": ["llms", "llm"],
        "Qwen2.5": ["qwen2", "qwen", "5", "qwen25"],
        "clipping": ["clipping", "clip"],
        "ＰＰＯ": ["ppo"],
        "r²": ["r2"],
    }
    returns = run([], [["tokenize", text] for text in expected])
    forms = [
        [form for token in tokens for form in token["forms"]] for tokens in returns
    ]
    assert dict(zip(expected, forms, strict=True)) == expected


def test_a_result_shows_question_sentence_and_place():
    html = """<h2 id="short-answer">Short answer</h2><p>Nothing here.</p>
    <h2 id="why">Why</h2><p>The first. The ratio² is clipped at <b>0.2</b> …</p>"""
    pages = [page(title="T", html=html), page(url="b/")]
    (results,) = run(pages, [["search", "clipping ratio"]])
    (result,) = results
    assert result["url"] == "a/"
    assert result["question"] == "What is it?"
    assert result["section"] == "Section"
    assert result["title"] == "T"
    assert result["sentence"] == ""
    place = result["place"]
    assert place["url"] == "a/#why"
    assert place["heading"] == "Why"
    assert place["sentence"] == "The ratio² is clipped at 0.2 …"
    (pieces,) = run(pages, [["highlight", place["sentence"], result["terms"]]])
    assert [piece["text"] for piece in pieces if piece["hit"]] == ["ratio²", "clipped"]
    assert "".join(piece["text"] for piece in pieces) == place["sentence"]


def test_what_stands_at_the_top_needs_no_place():
    html = """<h2 id="short-answer">Short answer</h2><p>The ratio is clipped.</p>
    <h2 id="why">Why</h2><p>The ratio is clipped again.</p>"""
    (result,) = found([page(html=html)], "ratio")
    assert "place" not in result
    assert result["sentence"] == "The ratio is clipped."


def test_a_heading_that_matches_shows_the_first_sentence_under_it():
    html = """<h2 id="short-answer">Short answer</h2><p>Nothing.</p>
    <h2 id="why">The staleness</h2><p>It grows. It falls.</p>"""
    (result,) = found([page(html=html)], "staleness")
    assert result["place"]["heading"] == "The staleness"
    assert result["place"]["sentence"] == "It grows."


def test_a_pasted_question_leads_to_the_top_of_its_page():
    html = '<p>So.</p><h2 id="deep">What is it</h2><p>It is this.</p>'
    (result,) = found([page(html=html)], "What is it?")
    assert "place" not in result
    assert result["sentence"] == "So."


def test_a_result_shows_the_wording_in_the_readers_language():
    expected = {
        "GRPO loss": "en",
        "GRPO 的 loss": "zh",
        "hàm loss GRPO": "vi",
        "viet ham loss": "vi",
    }
    returns = run(all_pages(), [["search", query] for query in expected])
    wordings = questions()["write-grpo-loss"]
    assert [results[0]["question"] for results in returns] == [
        wordings[language] for language in expected.values()
    ]
    assert [results[0]["language"] for results in returns] == [*expected.values()]


def test_the_sentence_is_in_the_readers_language_if_it_says_as_much():
    html = "<p>GRPO needs memory.</p><p>GRPO 很省。</p><p>GRPO tốn bộ nhớ.</p>"
    calls = [["search", query] for query in ("GRPO", "GRPO 呢", "GRPO thế nào")]
    returns = run([page(html=html)], calls)
    assert [results[0]["sentence"] for results in returns] == [
        "GRPO needs memory.",
        "GRPO 很省。",
        "GRPO tốn bộ nhớ.",
    ]


def test_a_long_sentence_is_cut_around_its_match():
    html = f"<p>{'word ' * 100}staleness {'word ' * 100}</p>"
    (results,) = run([page(html=html)], [["search", "staleness"]])
    sentence = results[0]["sentence"]
    assert "staleness" in sentence
    assert len(sentence) < 250
    assert sentence.startswith("… word") and sentence.endswith("word …")


def test_no_more_results_than_asked_for():
    (results,) = run(all_pages(), [["search", "GRPO", 3]])
    assert len(results) == 3


def test_the_language_of_a_text():
    texts = ("KL 散度", "ước lượng KL", "KL estimator")
    assert run([], [["languageOf", text] for text in texts]) == ["zh", "vi", "en"]


A7 = {"A7": "lists/rl-35/#a7", "C1.7": "lists/round-up-1/#c1-7"}
LIST = Document(
    "lists/rl-35/", "2 of 35 answered", "The list", {"en": "The list"}, kind="list"
)


@pytest.mark.parametrize("number", ["A7", "a7", " a 7", "C1.7", "c1.7", "C1 7", "Ａ７"])
def test_a_number_leads_to_its_answer_and_its_place_in_the_list(number):
    other = page(url="b/", html="<p>Figure A7 and table C1.7 and a 7.</p>")
    asked = page(numbers=A7)
    results = found([other, LIST, asked], number)
    assert results[0]["url"] == "a/"
    place = results[0]["place"]
    name = "C1.7" if "1" in number else "A7"
    assert place["url"] == A7[name]
    assert place["heading"].startswith(name)
    assert results[0]["numbers"] == ["A7", "C1.7"]


def test_the_place_of_a_number_names_the_list():
    result = found([LIST, page(numbers=A7)], "A7")[0]
    assert result["place"]["heading"] == "A7 · The list"


def test_a_number_in_a_sentence_is_found():
    assert found([page(numbers=A7), page(url="b/")], "question A7")[0]["url"] == "a/"


def test_an_open_question_is_found_by_its_number_and_leads_to_the_list():
    open_ = page(kind="open", url="lists/rl-35/#a7", numbers=A7)
    (result,) = found([open_], "A7")
    assert (result["kind"], result["url"]) == ("open", "lists/rl-35/#a7")
    assert "place" not in result


HACKING = Document(
    "lists/round-up-2/#c2-10",
    "Rewards",
    "reward hacking",
    {"en": "How do you tell that reward hacking happened?", "zh": "？", "vi": "?"},
    kind="open",
)


def test_an_open_question_stands_before_a_side_remark():
    html = f'<h2 id="x">Reward hacking</h2><p>{"Reward hacking. " * 20}</p>'
    results = found([page(html=html), HACKING], "when does reward hacking happen")
    assert [result["url"] for result in results] == [HACKING.url, "a/"]
    assert [result["isMention"] for result in results] == [False, True]


def test_an_answer_named_by_the_query_stands_before_an_open_question():
    aliases = {"en": ["reward hacking of a verifier"]}
    results = found([HACKING, page(aliases=aliases)], "notice reward hacking")
    assert [result["url"] for result in results] == ["a/", HACKING.url]
    assert not any(result["isMention"] for result in results)


def test_an_open_question_that_shares_a_word_stands_last():
    html = "<p>The scale of a reward says nothing on memory, batches or speed.</p>"
    query = "which reward scale gives more speed in large batches"
    results = found([HACKING, page(html=html)], query)
    assert [result["url"] for result in results] == ["a/", HACKING.url]


def test_a_name_that_only_the_text_holds_is_a_mention():
    html = "<p>With LoRA the adapters are small.</p>"
    (name,) = found([page(html=html)], "LoRA")
    (sentence,) = found([page(html=html)], "why are adapters small with LoRA then")
    assert name["isMention"] and not sentence["isMention"]


def test_a_list_is_found_by_its_names_only():
    names = {"en": ["interview list"], "zh": ["面经"]}
    list_ = Document(
        "lists/a/", "1 of 2", "Round-up", {"en": "Round-up"}, names, kind="list"
    )
    pages = [list_, page(html="<p>An interview on a list of lists.</p>")]
    for query in ("interview list", "round-up", "roundup", "面经"):
        assert found(pages, query)[0]["url"] == "lists/a/", query
    results = found(pages, "an interview on what adapters do to memory")
    assert [result["kind"] for result in results] == ["answer"]


def test_a_name_within_the_query_counts_as_a_whole():
    others = [f"tên gọi khác {i}" for i in range(9)]
    named = page(url="b/", aliases={"vi": ["bộ nhớ GRPO", *others]})
    wordings = {"en": "Which?", "zh": "？", "vi": "GRPO hay bộ nhớ?"}
    spread = page(url="c/", question=wordings)
    results = found([spread, named], "bộ nhớ khi huấn luyện GRPO")
    assert results[0]["url"] == "b/"


def test_a_vietnamese_syllable_weighs_less_than_a_word():
    memory = page(url="b/", aliases={"en": ["oom"]})
    update = page(url="c/", html="<p>Cập nhật trọng số.</p>", aliases={"vi": ["số"]})
    others = [page(url=f"{i}/", html="<p>Trọng số cập nhật.</p>") for i in range(9)]
    results = found([update, memory, *others], "OOM khi cập nhật trọng số")
    assert results[0]["url"] == "b/"


def test_names_and_headings_are_found_before_the_passages_come():
    html = '<h2 id="why">Staleness bound</h2><p>Only the text says lag.</p>'
    pages = [page(html=html, aliases={"en": ["off-policyness"]}, numbers=A7)]
    for query in ("What is it?", "off-policyness", "staleness", "A7"):
        assert found(pages, query, whole=False)[0]["url"] == "a/", query
    assert found(pages, "lag", whole=False) == []
    assert found(pages, "lag")[0]["url"] == "a/"
