/**
 * Search without a page: index, ranking, and what is shown of a result.
 *
 * Runs in the browser (through search.js) and under node (in the tests), so
 * nothing here touches the DOM.
 *
 * The order serves a reader who has a question:
 *
 * 1. what was asked for by its number ("A7"), in its own words, or by a name;
 * 2. answers that the query is about;
 * 3. questions without an answer yet whose own words hold the query, before
 *    answers that only mention it: nothing on the site answers it better, and
 *    a side remark must not pass for the answer;
 * 4. those mentions, marked as such;
 * 5. other questions without an answer.
 *
 * Without a question that holds the query, all answers are in the second
 * group. In a group the number and rarity of the words found decide.
 */

import {
  formsIn,
  HAN,
  highlight,
  isCharacter,
  isStopWord,
  isSyllable,
  keyOf,
  languageOf,
  normalize,
  tokenize,
} from "./search-words.js";

export { highlight, languageOf, tokenize };

/** How much a match is worth, by the field it is found in. */
const FIELD_BOOSTS = {
  numbers: 10,
  question: 6,
  aliases: 6,
  title: 4,
  tags: 3,
  headings: 2,
  body: 1,
};

/** The fields in which a page says what it is about. */
const NAMES = new Set(["numbers", "question", "aliases", "title", "tags"]);

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
/** Worth of one Vietnamese syllable: a word is mostly two. */
const SYLLABLE_WEIGHT = 0.6;
/** Results below this share of the best score are noise. */
const CUTOFF = 0.08;
/** Text in another language than the query's must cover this much more of it. */
const LANGUAGE_FACTOR = 1.5;
/** An open question that holds this share of the query is what was asked. */
const CLAIM = 0.5;
/** An answer whose names hold so much less than that question mentions it. */
const CLAIM_FACTOR = 1.5;
/** An answer whose names hold less of the query than this mentions it. */
const MENTION = 0.2;
/** A query of no more words than this names a thing. */
const NAME_WORDS = 3;
/** A list or a path is found by this share of the query at least. */
const PLACE_SHARE = 0.7;
/** Words of a query that are looked at: more than any question has. */
const MAX_QUERY_WORDS = 200;
/** Indexing gives way to the browser after so many milliseconds. */
const MAX_BLOCKING = 30;
/** Longest sentence that is shown, in characters. */
const MAX_SENTENCE = 180;

function sum(numbers) {
  return numbers.reduce((total, number) => total + number, 0);
}

/**
 * The sentences of a block and its heading, with their words.
 *
 * What matches in the heading is shown with the first sentence under it.
 */
function passagesOf({ anchor, heading, sentences }) {
  return [...sentences, heading].map((raw, i) => {
    const text = normalize(raw);
    const shown = i < sentences.length ? text : normalize(sentences[0] ?? "");
    const language = languageOf(text);
    return { anchor, heading, shown, language, forms: formsIn(text) };
  });
}

/**
 * What is indexed of a page: the terms of each field.
 *
 * A term counts once in each block of the body: how many blocks hold it says
 * as much as how often it occurs, and indexing takes a quarter less time.
 */
function fieldsOf(page, blocks, passages) {
  const terms = (texts) => texts.flatMap((text) => formsIn(normalize(text)));
  const headings = blocks.map((block) => block.heading);
  return {
    numbers: Object.keys(page.numbers).map(keyOf),
    question: terms(Object.values(page.question)),
    aliases: terms(page.aliases),
    title: terms([page.title]),
    tags: terms(page.tags),
    headings: terms([...new Set([...page.headings, ...headings])]),
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
 * @param {{pages: object[]}} names - The first part of the index that
 *   scripts/search_index.py builds.
 * @param {Object<string, object[]>} passages - Its second part; without it,
 *   pages are found by their names and headings.
 * @returns {Promise<object>} What `search` takes as its first argument.
 */
export async function buildIndex(MiniSearch, names, passages = {}) {
  const engine = new MiniSearch({
    fields: Object.keys(FIELD_BOOSTS),
    stringifyField: (terms) => terms,
    tokenize: (terms) => terms,
    processTerm: (term) => term,
    searchOptions: { tokenize: (term) => [term], boost: FIELD_BOOSTS },
  });
  const pages = [];
  let since = performance.now();
  for (const page of names.pages) {
    const blocks = passages[page.url] ?? [];
    const texts = blocks.map(passagesOf);
    engine.add({ id: pages.length, ...fieldsOf(page, blocks, texts) });
    pages.push({
      ...page,
      numberKeys: new Set(Object.keys(page.numbers).map(keyOf)),
      top: blocks[0]?.anchor,
      passages: texts.flat(),
      questionKeys: Object.values(page.question).map(keyOf),
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

/** Pages that hold a word: Map of id → {score, terms, isName}. */
function lookUp(engine, { forms, prefix }) {
  const found = new Map();
  const collect = (query, options, weight) => {
    for (const { id, score, match, queryTerms } of engine.search(query, options)) {
      const worth = (weight * score) / queryTerms.length;
      const hit = found.get(id) ?? { score: 0, terms: new Set(), isName: false };
      hit.score = Math.max(hit.score, worth);
      for (const [term, fields] of Object.entries(match)) {
        hit.terms.add(term);
        hit.isName ||= fields.some((field) => NAMES.has(field));
      }
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
  if (isCharacter(word)) return CHARACTER_WEIGHT;
  return isSyllable(word) ? SYLLABLE_WEIGHT : 1;
}

/**
 * How near a query is to a page's own question or names: 3 is its number, 2
 * its question, 1 its title or an alias, a share of the longer text if one
 * holds the other.
 */
function nearness(page, key) {
  if (page.numberKeys.has(key)) return 3;
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
 * Match the words of a query with the pages: Map of id → result.
 *
 * The sum of the words' scores is multiplied by the share of the query that
 * the page covers, so that a long paraphrase finds the page that holds most
 * of it, not the one that repeats one word of it. `matches` maps each term
 * found to the word it stands for, {weight}: rare words weigh more, and all
 * weights of a query add up to 1. `named` is the share of the query that the
 * page's names cover.
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
    for (const [id, { score, terms, isName }] of found) {
      const result =
        results.get(id) ?? { score: 0, named: 0, matches: new Map() };
      result.score += factor * score;
      if (isName) result.named += word.weight;
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

/** The language to show: the query's; its words tell if its letters don't. */
function languageFor({ question }, matches, language) {
  if (!question.vi || language !== "en") return language;
  const covered = (text) => coverage(formsIn(normalize(text)), matches);
  const isVietnamese =
    covered(question.vi) > LANGUAGE_FACTOR * covered(question.en);
  return isVietnamese ? "vi" : "en";
}

/** The passage that covers most of the query, {covered: 0} if none does. */
function passageFor({ passages }, matches, language) {
  let best = { covered: 0, worth: 0 };
  for (const passage of passages) {
    const covered = coverage(passage.forms, matches);
    const worth = covered * (passage.language === language ? LANGUAGE_FACTOR : 1);
    if (worth > best.worth) best = { ...passage, covered, worth };
  }
  return best;
}

/** How far the query is one of the page's names: both hold each other. */
function nameFit({ page, matches }) {
  const fits = [page.title, ...page.aliases].map((name) => {
    const words = tokenize(normalize(name)).filter((word) => !isStopWord(word));
    const found = words.filter(({ forms }) => forms.some((form) => matches.has(form)));
    const forms = found.flatMap((word) => word.forms);
    return (found.length / words.length) * coverage(forms, matches) || 0;
  });
  return Math.max(...fits);
}

/** How an answer begins, in the reader's language if it can. */
function openingOf({ passages }, language) {
  const start = passages.find((passage) => passage.language === language);
  return (start ?? passages[0])?.shown ?? "";
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

/** The row of a question in the list whose number was looked for. */
function rowFor(index, { numbers }, key, matches) {
  const number = Object.keys(numbers).find(
    (name) => keyOf(name) === key || matches.has(keyOf(name)),
  );
  if (!number) return undefined;
  const url = numbers[number];
  const list = index.pages.find((page) => page.url === url.split("#")[0]);
  return { url, heading: [number, list?.title].join(" · "), sentence: "" };
}

/** Where in the page the match stands, if that is not its top. */
function placeFor({ page, near, matches, passage }, terms) {
  if (near >= 2 || !passage.covered || passage.anchor === page.top) return undefined;
  return {
    url: `${page.url}#${passage.anchor}`,
    heading: passage.heading,
    sentence: excerpt(passage.shown, terms),
  };
}

function present(index, result, key, queryLanguage) {
  const { page, near, score, matches, passage, isMention } = result;
  const terms = [...matches.keys()];
  const language = languageFor(page, matches, queryLanguage);
  const row = page.kind === "answer" && rowFor(index, page, key, matches);
  const place = row || placeFor(result, terms);
  const isTop = !place && passage.covered && near < 2;
  const opening = isTop ? passage.shown : openingOf(page, language);
  return {
    kind: page.kind,
    isMention,
    url: page.url,
    language,
    question: page.question[language] ?? page.question.en,
    section: page.section,
    title: page.title,
    numbers: Object.keys(page.numbers),
    sentence: place ? "" : excerpt(opening, terms),
    place,
    terms,
    score,
  };
}

/** The share of the query that the open question nearest to it holds. */
function claimOf(results) {
  const open = results.filter(({ page }) => page.kind === "open");
  const claim = Math.max(0, ...open.map(({ named }) => named));
  return claim >= CLAIM ? claim : 0;
}

/** The group of a result after those near the query, as the head says. */
function groupOf({ page, named }, claim) {
  const isAsked = named >= claim / CLAIM_FACTOR;
  if (page.kind !== "open") return isAsked ? 2 : 4;
  return claim && isAsked ? 3 : 5;
}

function byRank(a, b) {
  return b.near - a.near || a.group - b.group || b.score - a.score;
}

/** Whether a page can be a result: a list is no answer to its every word. */
function isFound({ page, near, named }) {
  const isQuestion = page.kind === "answer" || page.kind === "open";
  return isQuestion || near > 0 || named >= PLACE_SHARE;
}

/** Whether an answer only mentions what the query names. */
function isMentionOf({ page, near, group, named }, words) {
  if (page.kind !== "answer" || near > 0) return false;
  const telling = words.filter((word) => importance(word) > CHARACTER_WEIGHT);
  return group === 4 || (telling.length <= NAME_WORDS && named < MENTION);
}

/** The pages that hold words of the query, with what decides their order. */
function candidatesFor(index, text, key) {
  const isNumber = index.pages.some(({ numberKeys }) => numberKeys.has(key));
  const words = isNumber ? [{ forms: [key], prefix: true }] : wordsOf(text);
  const found = [...matchPages(index, words)]
    .map(([id, match]) => {
      const page = index.pages[id];
      return { ...match, page, near: nearness(page, key) };
    })
    .filter(isFound);
  const claim = claimOf(found);
  return found.map((result) => {
    const placed = { ...result, group: groupOf(result, claim) };
    return { ...placed, isMention: isMentionOf(placed, words) };
  });
}

/**
 * What a query finds, best first; the order is explained above.
 *
 * @param {object} index - What `buildIndex` returned.
 * @param {string} query - What the reader typed or pasted.
 * @param {number} limit - Most results to return.
 * @returns {{kind: string, isMention: boolean, url: string, language: string,
 *   question: string, section: string, title: string, numbers: string[],
 *   sentence: string, place?: {url: string, heading: string, sentence: string},
 *   terms: string[], score: number}[]} `question` is the wording in
 *   `language`, the nearest to the query. What matches stands at the top of
 *   the page (`sentence`) or deeper (`place`). `terms` go to `highlight`.
 */
export function search(index, query, limit = 10) {
  const text = normalize(query);
  const language = languageOf(text);
  const key = keyOf(query);
  const results = candidatesFor(index, text, key)
    .sort(byRank)
    .slice(0, 2 * limit)
    .map((candidate) => {
      const passage = passageFor(candidate.page, candidate.matches, language);
      const score = candidate.score * (1 + passage.covered + nameFit(candidate));
      return { ...candidate, passage, score };
    });
  const least = CUTOFF * Math.max(...results.map(({ score }) => score));
  return results
    .sort(byRank)
    .filter(({ near, score }) => near > 0 || score >= least)
    .slice(0, limit)
    .map((result) => present(index, result, key, language));
}
