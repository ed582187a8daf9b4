/**
 * The words of a text, for the pages and the query alike, and their marks.
 *
 * Questions are asked in English, Chinese and Vietnamese, often mixed in one
 * line, so one tokenizer serves all three:
 *
 * - Han text has no spaces: it becomes overlapping pairs of characters.
 * - Vietnamese is found with and without its diacritics (đ counts as d).
 * - British and American spelling are folded to one form.
 * - "off-policy", "FlashAttention" and "Qwen2.5" are found whole and in parts.
 *
 * As every rule is applied to the pages and to the query, it does not matter
 * that a folded form is not a word ("source" → "sorce").
 */

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
    "a all an and are as at be between but by can do does for from happen happens",
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
export const HAN = /\p{Script=Han}/v;
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

/** All forms of all words of a normalized text. */
export function formsIn(text) {
  return tokenize(text).flatMap(({ forms }) => forms);
}

/** Letters and digits only: equal for a question however it was pasted. */
export function keyOf(text) {
  return text.normalize("NFKC").toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "");
}

export function isStopWord({ forms }) {
  return STOP_WORDS.has(forms[0]);
}

/** Whether a word is written with Vietnamese letters. */
export function isSyllable({ forms }) {
  return VIETNAMESE_LETTER.test(forms[0]);
}

export function isCharacter({ forms }) {
  return forms[0].length === 1 && HAN.test(forms[0]);
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
