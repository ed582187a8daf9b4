/**
 * Search without a page: words, index, ranking, sentence, highlighting.
 *
 * Runs in the browser (through search.js) and under node (in the tests), so
 * nothing here touches the DOM. Questions are asked in English, Chinese and
 * Vietnamese, often mixed in one line, so one tokenizer serves all three:
 *
 * - Han text has no spaces: it becomes overlapping pairs of characters.
 * - Vietnamese is found with and without its diacritics (đ counts as d).
 * - British and American spelling are folded to one form.
 * - "off-policy", "FlashAttention" and "Qwen2.5" are found whole and in parts.
 *
 * Every rule is applied to the pages and to the query alike; it therefore
 * does not matter that a folded form is not a word ("source" → "sorce").
 */

const LANGUAGES = ["en", "zh", "vi"];

/** How much a match is worth, by the field it is found in. */
const FIELD_BOOSTS = {
  question: 6,
  aliases: 6,
  title: 4,
  tags: 3,
  headings: 2,
  body: 1,
};

/** Worth of a match by stem or without diacritics, the word itself being 1. */
const VARIANT_WEIGHT = 0.6;
/** Worth of a word that differs by one typing error. */
const TYPO_WEIGHT = 0.5;
/** Words at least this long may hold a typing error. */
const TYPO_MIN_LENGTH = 6;
/** Worth of a word that only holds a question together. */
const STOP_WEIGHT = 0.1;
/** Worth of one Han character: a word is mostly two. */
const CHARACTER_WEIGHT = 0.25;
/** Results below this share of the best score are noise. */
const CUTOFF = 0.08;
/** Text in another language than the query's must cover this much more of it. */
const LANGUAGE_FACTOR = 1.5;
/** Words of a query that are looked at: more than any question has. */
const MAX_QUERY_WORDS = 200;
/** Indexing gives way to the browser after so many milliseconds. */
const MAX_BLOCKING = 30;
/** Longest sentence that is shown, in characters. */
const MAX_SENTENCE = 180;

/** [pattern, replacement]: one spelling for words that are written in two. */
const SPELLINGS = [
  [/([iy])z/g, "$1s"], // optimize, analyze
  [/(?<=..)our/g, "or"], // colour, behaviour
  [/(?<=[aeiou])ll/g, "l"], // modelling, fulfill
  [/(cent|met|lit|fib)re(?=s?$)/, "$1er"], // centre
  [/(defen|offen|licen|preten|practi)ce/, "$1se"], // licence
  [/ogue(?=s?$)/, "og"], // catalogue
  [/gramme(?=s?$)/, "gram"], // programme
  [/dgement/, "dgment"], // judgement
  [/^artefact/, "artifact"],
  [/^grey/, "gray"],
  [/^([hklmst])y$/, "$1i"], // Vietnamese tỷ and tỉ
];

/** [pattern, replacement]: clipping, clipped, clips and clip are one. */
const ENDINGS = [
  [/ies$/, "y"], // queries
  [/(?<=ss|x|ch|sh)es$/, ""], // losses
  [/(?<!s)s$/, ""], // rewards
  [/isation$/, "is"], // normalisation
  [/([bdgmnprt])\1(?:ing|ed)$/, "$1"], // clipping
  [/(?<=[aeiouy].+)(?:ing|ed)$/, ""], // training
  [/(?<=.{4})e$/, ""], // optimise
];

/** Words that only hold a question together, folded as `formsOf` does. */
const STOP_WORDS = new Set(
  [
    "a an and are as at be between but by can do does for from happen happens",
    "how i if in into is it its me my of on one or should so than that the",
    "their them then there these they this to use used uses was we were what",
    "when where which who why wil with work works would you your",
    "bao bằng các cách cái chỉ cho có còn của cũng dùng đang đâu đây để đến đi",
    "được gì giữa hay khi không là lại làm lên lúc mà một nào này như nhưng",
    "những nên ở qua ra rồi sao ta tại thế thì tới trên trong từ và vào về vì",
    "với vậy",
    "的 了 是 和 在 有 吗 呢 与 为 要 会 用 中 对 什么 为什 怎么 么是 是什 如何",
    "哪些 有何 为何 可以 一般 怎样 请问 介绍 一下 有什 什么 么要 么用 么办",
  ].flatMap((line) =>
    line.split(" ").flatMap((word) => [word, foldDiacritics(word)]),
  ),
);

const VIETNAMESE_LETTER =
  /[ăâđêôơưàáảãạằắẳẵặầấẩẫậèéẻẽẹềếểễệìíỉĩịòóỏõọồốổỗộờớởỡợùúủũụừứửữựỳýỷỹỵ]/i;
const HAN = /\p{Script=Han}/v;
const LETTER = String.raw`[[\p{L}\p{N}\p{M}]--\p{Script=Han}]`;
/** A run of Han, or words of other scripts joined by - _ . or an apostrophe. */
const CHUNK = new RegExp(
  String.raw`\p{Script=Han}+|${LETTER}+(?:[\-_.'’‐‑]${LETTER}+)*`,
  "gv",
);
/** Where FlashAttention, RMSNorm and Qwen2 come apart. */
const INNER_BOUNDARY =
  /[-_.'’‐‑]|(?<=\p{Ll})(?=\p{Lu})|(?<=\p{Lu})(?=\p{Lu}\p{Ll}{2})/u;
const LETTERS_THEN_DIGITS = /^(\p{L}{3,})\p{N}+$/u;

/** Unicode with composed letters: a Vietnamese letter is one character. */
export function normalize(text) {
  return text.normalize("NFC");
}

/** The language a text is written in, for its `lang` attribute. */
export function languageOf(text) {
  if (HAN.test(text)) return "zh";
  return VIETNAMESE_LETTER.test(text) ? "vi" : "en";
}

function foldDiacritics(word) {
  return word.normalize("NFD").replace(/\p{M}/gu, "").replaceAll("đ", "d");
}

function rewrite(word, rules) {
  return rules.reduce((text, [from, to]) => text.replace(from, to), word);
}

/** Without the common English endings. */
function stem(word) {
  return /^[a-z]{4,}$/.test(word) ? rewrite(word, ENDINGS) : word;
}

/** Forms under which a word is indexed and looked up, the exact one first. */
function formsOf(word) {
  const lower = word.normalize("NFKC").toLowerCase(); // full-width letters
  const plain = rewrite(foldDiacritics(lower), SPELLINGS);
  const accented = VIETNAMESE_LETTER.test(lower) ? [lower] : [];
  return [...new Set([...accented, plain, stem(plain)])];
}

/** Every character and every pair of neighbours. */
function splitHan(run) {
  const tokens = [];
  let start = 0;
  let before = "";
  for (const character of run) {
    const end = start + character.length;
    tokens.push({ start, end, forms: [character] });
    if (before) {
      const pair = before + character;
      tokens.push({ start: end - pair.length, end, forms: [pair] });
    }
    before = character;
    start = end;
  }
  return tokens;
}

/** The parts of a compound, then the whole; often just one word. */
function splitCompound(chunk) {
  const parts = chunk.split(INNER_BOUNDARY);
  const tokens = [];
  let start = 0;
  for (const part of parts) {
    start = chunk.indexOf(part, start);
    const end = start + part.length;
    tokens.push({ start, end, forms: formsOf(part) });
    const letters = part.match(LETTERS_THEN_DIGITS)?.[1];
    if (letters) tokens.push({ start, end, forms: formsOf(letters) });
    start = end;
  }
  if (parts.length > 1) {
    tokens.push({ start: 0, end: chunk.length, forms: formsOf(parts.join("")) });
  }
  return tokens;
}

const knownChunks = new Map();

/**
 * The words of a normalized text, in order.
 *
 * @param {string} text - What `normalize` returned.
 * @returns {{start: number, end: number, forms: string[]}[]} Place in the
 *   text and the forms to index or look up, the exact one first.
 */
export function tokenize(text) {
  const tokens = [];
  for (const { 0: chunk, index } of text.matchAll(CHUNK)) {
    let split = knownChunks.get(chunk);
    if (!split) {
      split = HAN.test(chunk) ? splitHan(chunk) : splitCompound(chunk);
      knownChunks.set(chunk, split);
    }
    for (const { start, end, forms } of split) {
      tokens.push({ start: index + start, end: index + end, forms });
    }
  }
  return tokens;
}

function sum(numbers) {
  return numbers.reduce((total, number) => total + number, 0);
}

function formsIn(text) {
  return tokenize(text).flatMap(({ forms }) => forms);
}

/** Letters and digits only: equal for a question however it was pasted. */
function keyOf(text) {
  return text.normalize("NFKC").toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "");
}

/** The sentences of a block and its heading, with their words. */
function passagesOf({ anchor, heading, sentences }) {
  return [...sentences, heading].map((raw) => {
    const text = normalize(raw);
    return { anchor, text, language: languageOf(text), forms: formsIn(text) };
  });
}

/**
 * What is indexed of a page: the terms of each field.
 *
 * A term counts once in each block of the body: how many blocks hold it says
 * as much as how often it occurs, and indexing takes a quarter less time.
 */
function fieldsOf({ question, aliases, title, tags, blocks }, passages) {
  const terms = (texts) => texts.flatMap((text) => formsIn(normalize(text)));
  return {
    question: terms(LANGUAGES.map((language) => question[language])),
    aliases: terms(aliases),
    title: terms([title]),
    tags: terms(tags),
    headings: terms(blocks.map((block) => block.heading)),
    body: passages.flatMap((block) => [
      ...new Set(block.flatMap(({ forms }) => forms)),
    ]),
  };
}

function pause() {
  return new Promise((resolve) => setTimeout(resolve));
}

/**
 * Index the pages. Gives way to the browser now and then.
 *
 * @param {Function} MiniSearch - The class that npm's `minisearch` exports.
 * @param {{pages: object[]}} data - What scripts/search_index.py builds.
 * @returns {Promise<object>} What `search` takes as its first argument.
 */
export async function buildIndex(MiniSearch, data) {
  const engine = new MiniSearch({
    fields: Object.keys(FIELD_BOOSTS),
    stringifyField: (terms) => terms,
    tokenize: (terms) => terms,
    processTerm: (term) => term,
    searchOptions: { tokenize: (term) => [term], boost: FIELD_BOOSTS },
  });
  const pages = [];
  let since = performance.now();
  for (const page of data.pages) {
    const passages = page.blocks.map(passagesOf);
    engine.add({ id: pages.length, ...fieldsOf(page, passages) });
    pages.push({
      ...page,
      passages: passages.flat(),
      questionKeys: LANGUAGES.map((language) => keyOf(page.question[language])),
      nameKeys: new Set([page.title, ...page.aliases].map(keyOf)),
    });
    if (performance.now() - since > MAX_BLOCKING) {
      await pause();
      since = performance.now();
    }
  }
  return { engine, pages };
}

function swapNeighbours(word) {
  return Array.from(word.slice(1), (letter, i) =>
    [word.slice(0, i), letter, word[i], word.slice(i + 2)].join(""),
  );
}

/** Pages that hold a word: Map of id → {score, terms}. */
function lookUp(engine, { forms, prefix }) {
  const found = new Map();
  const collect = (query, options, weight) => {
    for (const { id, score, terms, queryTerms } of engine.search(query, options)) {
      const worth = (weight * score) / queryTerms.length;
      const hit = found.get(id) ?? { score: 0, terms: new Set() };
      hit.score = Math.max(hit.score, worth);
      terms.forEach((term) => hit.terms.add(term));
      found.set(id, hit);
    }
  };
  forms.forEach((form, i) =>
    collect(form, { prefix }, i === 0 ? 1 : VARIANT_WEIGHT),
  );
  const [word] = forms;
  const mayBeTypo = word.length >= TYPO_MIN_LENGTH && /^\p{L}+$/u.test(word);
  if (found.size === 0 && mayBeTypo) {
    collect(word, { fuzzy: 1 }, TYPO_WEIGHT);
    swapNeighbours(word).forEach((swap) => collect(swap, {}, TYPO_WEIGHT));
  }
  return found;
}

function isStopWord({ forms }) {
  return STOP_WORDS.has(forms[0]);
}

function isCharacter({ forms }) {
  return forms[0].length === 1 && HAN.test(forms[0]);
}

/** The distinct words of a query, the one being typed marked as a prefix. */
function wordsOf(text) {
  const words = new Map();
  for (const token of tokenize(text)) {
    const [word] = token.forms;
    const isTyped = token.end === text.length && !isStopWord(token);
    const prefix = isTyped && word.length > 1 && !HAN.test(word);
    words.set(word, { forms: token.forms, prefix });
  }
  return [...words.values()].slice(0, MAX_QUERY_WORDS);
}

/** How much of the meaning a word carries, by its kind. */
function importance(word) {
  if (isStopWord(word)) return STOP_WEIGHT;
  return isCharacter(word) ? CHARACTER_WEIGHT : 1;
}

/**
 * How near a query is to a page's own question or names: 2 is its question,
 * 1 its title or an alias, a share of the longer text if one holds the other.
 */
function nearness(page, key) {
  if (page.questionKeys.includes(key)) return 2;
  if (page.nameKeys.has(key)) return 1;
  const shares = page.questionKeys.map((question) => {
    const [short, long] =
      key.length < question.length ? [key, question] : [question, key];
    return long.includes(short) ? short.length / long.length : 0;
  });
  const share = Math.max(...shares);
  return share >= 0.5 ? share : 0;
}

/**
 * Match the words of a query with the pages: Map of id → {score, matches}.
 *
 * The sum of the words' scores is multiplied by the share of the query that
 * the page covers, so that a long paraphrase finds the page that holds most
 * of it, not the one that repeats one word of it. `matches` maps each term
 * found to the word it stands for, {weight}: rare words weigh more, and all
 * weights of a query add up to 1.
 */
function matchPages(index, query) {
  const words = query.map((word) => {
    const found = lookUp(index.engine, word);
    const rarity = Math.log(1 + index.pages.length / (1 + found.size));
    return { found, factor: importance(word), weight: importance(word) * rarity };
  });
  const total = sum(words.map(({ weight }) => weight));
  const results = new Map();
  for (const { found, factor, weight } of words) {
    const word = { weight: weight / total };
    for (const [id, { score, terms }] of found) {
      const result = results.get(id) ?? { score: 0, matches: new Map() };
      result.score += factor * score;
      for (const term of terms) result.matches.set(term, word);
      results.set(id, result);
    }
  }
  for (const result of results.values()) {
    result.score *= coverage([...result.matches.keys()], result.matches);
  }
  return results;
}

/** The share of the query that a text's forms cover. */
function coverage(forms, matches) {
  const words = new Set();
  for (const form of forms) {
    const word = matches.get(form);
    if (word) words.add(word);
  }
  return sum([...words].map(({ weight }) => weight));
}

/** The wording in the query's language; its words tell if its letters don't. */
function wordingFor({ question }, matches, language) {
  if (language !== "en") return question[language];
  const covered = (text) => coverage(formsIn(normalize(text)), matches);
  const isVietnamese =
    covered(question.vi) > LANGUAGE_FACTOR * covered(question.en);
  return isVietnamese ? question.vi : question.en;
}

/** The passage that covers most of the query, or the page's first sentence. */
function passageFor({ passages }, matches, language) {
  let best = { covered: 0, worth: 0 };
  for (const passage of passages) {
    const covered = coverage(passage.forms, matches);
    const worth = covered * (passage.language === language ? LANGUAGE_FACTOR : 1);
    if (worth > best.worth) best = { ...passage, covered, worth };
  }
  if (best.covered > 0) return best;
  const [first = { text: "" }] = passages;
  const start = passages.find((passage) => passage.language === language);
  return { anchor: "", text: (start ?? first).text, covered: 0 };
}

/** The next space, if one is near: where a text may be cut. */
function cutAfter(text, at) {
  const space = text.indexOf(" ", at);
  return space >= 0 && space < at + 20 ? space : at;
}

/** The part of a long sentence around its first match. */
function excerpt(sentence, terms) {
  if (sentence.length <= MAX_SENTENCE) return sentence;
  const [first] = highlight(sentence, terms);
  const lead = first.hit ? 0 : first.text.length;
  const from = lead < MAX_SENTENCE / 2 ? 0 : cutAfter(sentence, lead - 60);
  const to = cutAfter(sentence, from + MAX_SENTENCE);
  const before = from > 0 ? "… " : "";
  const after = to < sentence.length ? " …" : "";
  return before + sentence.slice(from, to).trim() + after;
}

function present({ page, near, score, matches, passage }, language) {
  const terms = [...matches.keys()];
  return {
    url: page.url,
    anchor: near === 2 ? "" : passage.anchor,
    question: wordingFor(page, matches, language),
    section: page.section,
    title: page.title,
    sentence: excerpt(passage.text, terms),
    terms,
    score,
  };
}

function byRank(a, b) {
  return b.near - a.near || b.score - a.score;
}

/**
 * The pages that answer a query, best first.
 *
 * A page's own question always comes first, then pages named by the query,
 * then the others by the rarity and number of the query's words that the page
 * and its best sentence hold.
 *
 * @param {object} index - What `buildIndex` returned.
 * @param {string} query - What the reader typed or pasted.
 * @param {number} limit - Most results to return.
 * @returns {{url: string, anchor: string, question: string, section: string,
 *   title: string, sentence: string, terms: string[], score: number}[]}
 *   `question` is the wording nearest to the query, `terms` go to `highlight`.
 */
export function search(index, query, limit = 10) {
  const text = normalize(query);
  const language = languageOf(text);
  const key = keyOf(query);
  const candidates = [...matchPages(index, wordsOf(text))]
    .map(([id, { score, matches }]) => {
      const page = index.pages[id];
      return { page, near: nearness(page, key), score, matches };
    })
    .sort(byRank)
    .slice(0, 2 * limit);
  const results = candidates.map((candidate) => {
    const passage = passageFor(candidate.page, candidate.matches, language);
    const score = candidate.score * (1 + passage.covered);
    return { ...candidate, passage, score };
  });
  const least = CUTOFF * Math.max(...results.map(({ score }) => score));
  return results
    .sort(byRank)
    .filter(({ near, score }) => near > 0 || score >= least)
    .slice(0, limit)
    .map((result) => present(result, language));
}

/**
 * Cut a text where matches start and end.
 *
 * @param {string} text - The `sentence` or `question` of a result.
 * @param {string[]} terms - The `terms` of that result.
 * @returns {{text: string, hit: boolean}[]} Pieces that make up the text.
 */
export function highlight(text, terms) {
  const wanted = new Set(terms);
  const hits = tokenize(text).filter(
    (token) => !isStopWord(token) && token.forms.some((form) => wanted.has(form)),
  );
  const words = hits.filter((token) => !isCharacter(token));
  const isHit = new Array(text.length).fill(false);
  for (const { start, end } of words.length ? words : hits) {
    isHit.fill(true, start, end);
  }
  const pieces = [];
  for (let start = 0, end = 1; start < text.length; end += 1) {
    if (end < text.length && isHit[end] === isHit[start]) continue;
    pieces.push({ text: text.slice(start, end), hit: isHit[start] });
    start = end;
  }
  return pieces;
}
