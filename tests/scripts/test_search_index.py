"""What of a page enters the search index."""

import json

import pytest

from scripts.search_index import Document, build, extract, split_sentences

QUESTION = {"en": "What is K3?", "zh": "K3 是什么？", "vi": "K3 là gì?"}


def sentences(html: str) -> list[str]:
    return [s for block in extract(html) for s in block["sentences"]]


def page(**changes) -> dict:
    """Return both parts of what the index holds of a page."""
    fields = {
        "url": "policy/k3/",
        "section": "Policy",
        "title": "K3",
        "question": QUESTION,
    }
    names, passages = build([Document(**{**fields, **changes})])
    return {**names["pages"][0], "blocks": passages.get("policy/k3/", [])}


def test_an_entry_holds_what_a_result_shows():
    entry = page(
        aliases={"en": ["low_var_kl", "k3"], "zh": ["k3", "估计"], "vi": []},
        tags=["kl"],
        numbers={"C1.4": "lists/a/#c1-4"},
        html='<h2 id="why">Why</h2><p>One. Two.</p>',
    )
    assert entry == {
        "kind": "answer",
        "url": "policy/k3/",
        "section": "Policy",
        "title": "K3",
        "question": QUESTION,
        "aliases": ["low_var_kl", "k3", "估计"],
        "tags": ["kl"],
        "numbers": {"C1.4": "lists/a/#c1-4"},
        "headings": ["Why"],
        "blocks": [{"anchor": "why", "heading": "Why", "sentences": ["One.", "Two."]}],
    }


def test_pages_keep_their_order_and_are_json():
    documents = [Document(url, "S", "T", QUESTION) for url in ("b/", "a/")]
    names, passages = build(documents)
    assert json.loads(json.dumps([names, passages])) == [names, passages]
    assert [entry["url"] for entry in names["pages"]] == ["b/", "a/"]


def test_headings_of_every_page_and_follow_ups_are_not_among_the_names():
    html = (
        '<h2 id="s">Short answer</h2><p>One.</p><h2 id="w">Why it works</h2>'
        '<details id="follow-up-1"><summary>And then?</summary><p>Two.</p></details>'
    )
    document = Document("a/", "S", "T", QUESTION, html=html)
    names, passages = build([document], common=["Short answer"])
    assert names["pages"][0]["headings"] == ["Why it works"]
    assert [b["heading"] for b in passages["a/"]] == [
        "Short answer",
        "Why it works",
        "And then?",
    ]


def test_the_pages_own_question_is_not_repeated():
    html = (
        '<h1 id="k3">What is K3?</h1><p lang="zh">K3 是什么？</p>'
        '<p>K3 là gì?</p><h2 id="a">Short answer</h2><p>It is.</p>'
    )
    blocks = page(html=html)["blocks"]
    assert blocks == [
        {"anchor": "a", "heading": "Short answer", "sentences": ["It is."]}
    ]


def test_text_goes_to_the_heading_above_it():
    html = '<p>Zero.</p><h2 id="a">A <em>b</em></h2><p>One.</p><h3 id="c">C</h3><p>Two.'
    assert extract(html) == [
        {"anchor": "", "heading": "", "sentences": ["Zero."]},
        {"anchor": "a", "heading": "A b", "sentences": ["One."]},
        {"anchor": "c", "heading": "C", "sentences": ["Two."]},
    ]


def test_a_heading_without_id_has_the_anchor_above_it():
    assert extract('<h2 id="a">A</h2><h3>B</h3><p>One.</p>')[1] == {
        "anchor": "a",
        "heading": "B",
        "sentences": ["One."],
    }


@pytest.mark.parametrize(("id_", "anchor"), [(' id="f1"', "f1"), ("", "a")])
def test_a_follow_up_is_a_block_of_its_own(id_, anchor):
    html = (
        f'<h2 id="a">A</h2><details{id_}><summary>Why?</summary>'
        "<p>Because.</p></details><p>After.</p>"
    )
    assert extract(html)[1:] == [
        {"anchor": anchor, "heading": "Why?", "sentences": ["Because."]},
        {"anchor": "a", "heading": "", "sentences": ["After."]},
    ]


def test_after_an_inner_follow_up_the_outer_one_goes_on():
    html = (
        '<details id="o"><summary>Outer</summary><details id="i">'
        "<summary>Inner</summary><p>One.</p></details><p>Two.</p></details>"
    )
    assert extract(html)[-1] == {"anchor": "o", "heading": "", "sentences": ["Two."]}


@pytest.mark.parametrize(
    "html",
    [
        "<pre><span></span><code>x = 1</code></pre>",
        '<div class="highlight"><pre>x<br>y</pre></div>',
        "<svg><g><path d='M0'/><text>label</text></g></svg>",
        "<script>run()</script>",
        "<style>p { color: red }</style>",
        '<span aria-hidden="true">hidden</span>',
        '<div class="a noindex"><div><img src="x">deep</div></div>',
        '<a class="headerlink" href="#a">¶</a>',
        '<div class="tabbed-labels"><label>English</label></div>',
    ],
)
def test_left_out(html):
    assert sentences(f"<p>Before.</p>{html}<p>After.</p>") == ["Before.", "After."]


def test_an_inline_formula_leaves_a_mark():
    html = (
        '<p>Let <span class="arithmatex"><span class="katex-mathml"><math><mi>r</mi>'
        '<annotation encoding="application/x-tex">r</annotation></math></span>'
        '<span class="katex-html" aria-hidden="true">r</span></span> be it.</p>'
    )
    assert sentences(html) == ["Let … be it."]


def test_a_display_formula_leaves_nothing():
    html = (
        '<p>One.</p><p><span class="arithmatex"><b>x</b></span></p>'
        "<math><mi>y</mi></math>"
    )
    assert sentences(html) == ["One."]


def test_left_out_citations_leave_no_gap():
    html = (
        '<p>It is so <a class="cite" href="#s">A 2020, Eq. 7</a>. And so '
        '(<a class="cite" href="#s">B 2021</a>), too.</p>'
    )
    assert sentences(html) == ["It is so.", "And so, too."]


def test_nothing_of_the_foot_is_kept():
    html = (
        '<p>One.</p><h2 class="foot" id="s">Sources</h2><ol><li>Smith.</li></ol>'
        '<details><summary>More</summary></details><h2 id="b">B</h2><p>Two.</p>'
    )
    assert sentences(html) == ["One.", "Two."]
    assert [block["heading"] for block in extract(html)] == ["", "B"]


def test_inline_code_stays():
    assert sentences("<p>Set <code>clip_ratio</code>.</p>") == ["Set clip_ratio."]


def test_words_do_not_grow_together():
    html = "<ul><li>One</li><li>Two<br>Three</li></ul><dl><dt>A</dt><dd>B</dd></dl>"
    assert sentences(html) == ["One", "Two Three", "A", "B"]


def test_a_table_gives_one_sentence_a_row():
    html = (
        "<table><tr><th>a</th><th>b</th></tr>\n<tr><td>x</td>\n<td>2</td></tr>"
        "<tr><td>3</td><td>4</td></tr></table>"
    )
    assert sentences(html) == ["a · b", "x · 2"]


def test_references_to_characters_are_read():
    assert sentences("<p>a &lt; b &amp; c&#8217;s</p>") == ["a < b & c’s"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("One. Two? Three!", ["One.", "Two?", "Three!"]),
        ("一是。二是？三；四", ["一是。", "二是？", "三；", "四"]),
        ("Một. Hai.", ["Một.", "Hai."]),
        ("No. It is not.", ["No.", "It is not."]),
        ("Liu et al. 2025, Eq. 7, e.g. here.", None),
        ("Dr. GRPO at 0.95 in V3.2 differs.", None),
    ],
)
def test_sentences_end_where_they_end(text, parts):
    assert split_sentences(text) == (parts or [text])
