/**
 * The search box: turns each `[data-search]` host into a combobox.
 *
 * Markup: theme/partials/search-box.html. Without this script the form leads
 * to the list of all questions. The library and the index are fetched when the
 * reader first touches a box, and are shared by all boxes of a page: first the
 * names, which give results at once, then the text of the answers.
 *
 * A result has two lines to click: the question leads to the top of its page,
 * the place below it to where the match stands. In the listbox each result is a
 * group of one or two options.
 *
 * Keys: "/" and Ctrl-K or ⌘-K go to the box; up and down choose a result, right
 * and left go to its place and back, Enter opens what is chosen (the first, if
 * nothing is), Escape returns to the page.
 */

const MAX_RESULTS = 8;
/** The message that the search is loading waits so long, in milliseconds. */
const LOADING_DELAY = 100;
const ALL_QUESTIONS = "questions/";
/** Android keyboards compose every Latin word too: there, results can't wait. */
const COMPOSES_EVERYTHING = /Android/.test(navigator.userAgent);

/** What stands over a result that is not simply an answer, by its kind. */
const NOTES = {
  open: "Not answered yet",
  list: "List",
  path: "Reading path",
};

/** Load once; after a failure the next call tries again. */
function once(load) {
  let loading;
  return (root) => {
    loading ??= load(root).catch((error) => {
      loading = undefined;
      throw error;
    });
    return loading;
  };
}

async function fetchJson(path, root) {
  const response = await fetch(new URL(path, root));
  if (!response.ok) throw new Error(`${response.url}: ${response.status}`);
  return response.json();
}

/** A search by names and headings. */
const loadNames = once(async (root) => {
  const [{ default: MiniSearch }, core, names] = await Promise.all([
    import("./minisearch.js"),
    import("./search-core.js"),
    fetchJson("search/index.json", root),
    import("./search-words.js"), // the core's, fetched beside it
  ]);
  const index = await core.buildIndex(MiniSearch, names);
  return { ...core, MiniSearch, names, index, isWhole: false };
});

/** The search by all the text, once it is there. */
let whole;

/** A search by all the text; the smaller files have had the line first. */
const loadWhole = once(async (root) => {
  const engine = await loadNames(root);
  const passages = await fetchJson("search/passages.json", root);
  const { MiniSearch, names } = engine;
  const index = await engine.buildIndex(MiniSearch, names, passages);
  whole = { ...engine, index, isWhole: true };
  return whole;
});

/** An element with properties and children; strings become text. */
function create(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/** What kind of result this is, unless it simply is an answer. */
function noteOn({ kind, isMention }) {
  const note = isMention ? "Mentioned in" : NOTES[kind];
  return note ? [create("span", { className: "search__note" }, note)] : [];
}

/** Its section and the numbers under which it was asked. */
function aboutOf({ section, numbers }) {
  return [section, numbers.join(", ")].filter(Boolean).join(" · ");
}

class SearchBox {
  constructor(host) {
    this.host = host;
    this.form = host.querySelector("form");
    this.input = host.querySelector('input[type="search"]');
    this.root = new URL(`${host.dataset.base}/`, document.baseURI);
    this.results = [];
    this.chosen = -1;
    this.isPlace = false;
    this.opensFirst = false;
    this.createPanel();
    this.listen();
  }

  createPanel() {
    const { id } = this.input;
    this.list = create("div", { id: `${id}-results`, role: "listbox" });
    this.list.ariaLabel = "Results";
    this.message = create("p", { className: "search__message", hidden: true });
    this.panel = create(
      "div",
      { className: "search__panel", hidden: true },
      this.list,
      this.message,
    );
    this.status = create("p", { className: "search__status", role: "status" });
    this.host.append(this.panel, this.status);
    this.input.role = "combobox";
    this.input.ariaAutoComplete = "list";
    this.input.ariaExpanded = "false";
    this.input.setAttribute("aria-controls", this.list.id);
    this.host.dataset.search = "ready";
  }

  listen() {
    const { host, form, input, panel } = this;
    input.addEventListener("focus", () => {
      loadWhole(this.root).catch(() => {}); // `update` reports a failure
      this.update();
    });
    input.addEventListener("input", (event) => {
      if (!event.isComposing || COMPOSES_EVERYTHING) this.update();
    });
    input.addEventListener("compositionend", () => this.update());
    host.addEventListener("keydown", (event) => this.onKey(event));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.open();
    });
    // Focus stays in the box while a result is clicked or the list scrolled.
    panel.addEventListener("mousedown", (event) => event.preventDefault());
    host.addEventListener("focusout", ({ relatedTarget }) => {
      if (!host.contains(relatedTarget)) this.close();
    });
  }

  onKey(event) {
    if (event.isComposing || event.keyCode === 229) return;
    const steps = { ArrowDown: 1, ArrowUp: -1 };
    if (event.key in steps) {
      event.preventDefault();
      if (this.panel.hidden) this.update();
      this.move(steps[event.key]);
    } else if (event.key === "ArrowRight" && this.isAtEnd()) {
      if (this.choose(this.chosen, true)) event.preventDefault();
    } else if (event.key === "ArrowLeft" && this.isPlace) {
      event.preventDefault();
      this.choose(this.chosen);
    } else if (event.key === "Escape") {
      event.preventDefault();
      this.leave();
    }
  }

  /** Put the focus here, to give it back to where it was on Escape. */
  enter() {
    if (document.activeElement !== this.input) {
      this.cameFrom = document.activeElement;
    }
    this.input.focus();
    this.input.select();
  }

  leave() {
    this.close();
    this.input.blur();
    this.cameFrom?.focus({ preventScroll: true });
    this.cameFrom = undefined;
  }

  /** Whether an arrow to the right would not move the cursor. */
  isAtEnd() {
    return this.input.selectionStart === this.input.value.length;
  }

  /** Show what the text in the box finds now, or as soon as it can. */
  async update() {
    const query = this.input.value.trim();
    this.opensFirst = false;
    if (!query) {
      this.close();
      return;
    }
    const isCurrent = () => this.input.value.trim() === query;
    const timer = setTimeout(() => {
      if (isCurrent()) this.say("Loading the search …");
    }, LOADING_DELAY);
    try {
      for (const load of whole ? [loadWhole] : [loadNames, loadWhole]) {
        const engine = await load(this.root);
        clearTimeout(timer);
        if (!isCurrent()) return;
        this.show(query, engine);
      }
    } catch (error) {
      console.error(error);
      clearTimeout(timer);
      if (isCurrent() && (this.query !== query || this.list.hidden)) this.sayFailed();
    }
  }

  show(query, engine) {
    const found = engine.search(engine.index, query, MAX_RESULTS);
    const { chosen, isPlace } = this;
    const isRefresh = this.query === query && !this.list.hidden;
    const results = isRefresh ? this.keepBefore(this.heldRow(), found) : found;
    this.query = query;
    if (results.length === 0) {
      if (!engine.isWhole) this.say("Searching the text …");
      else this.say(`No answer matches “${query}”. `, this.linkToAll());
      return;
    }
    this.choose(-1);
    this.results = results;
    this.list.replaceChildren(
      ...results.map((result, i) => this.createResult(result, i, engine)),
    );
    this.list.dataset.step = engine.isWhole ? "whole" : "names";
    this.message.hidden = true;
    this.list.hidden = false;
    this.status.textContent =
      results.length === 1 ? "1 result" : `${results.length} results`;
    this.setOpen(true);
    if (isRefresh) this.choose(chosen, isPlace) || this.choose(chosen);
    if (this.opensFirst) this.open();
  }

  /** The row that may not move: chosen by a key or under the pointer. */
  heldRow() {
    const rows = [...this.list.children];
    const hovered = rows.findIndex((row) => row.matches(":hover"));
    return Math.max(this.chosen, hovered);
  }

  /** New results below a row that stays where it is, with what is above it. */
  keepBefore(row, found) {
    const isIn = (results, { url }) => results.some((one) => one.url === url);
    const kept = this.results.slice(0, row + 1);
    const last = kept.at(-1);
    const renewed = found.find(({ url }) => url === last?.url);
    if (renewed) kept[row] = renewed;
    return [...kept, ...found.filter((result) => !isIn(kept, result))].slice(
      0,
      MAX_RESULTS,
    );
  }

  createResult(result, i, { highlight, languageOf }) {
    const id = `${this.list.id}-${i}`;
    const marked = (className, text) =>
      create(
        "span",
        { className, lang: languageOf(text) },
        ...highlight(text, result.terms).map((piece) =>
          piece.hit ? create("mark", {}, piece.text) : piece.text,
        ),
      );
    const row = create(
      "div",
      { className: "search__row", role: "group" },
      this.createOption(id, "search__result", this.addressOf(result, result.url), [
        ...noteOn(result),
        marked("search__question", result.question),
        ...(result.sentence ? [marked("search__sentence", result.sentence)] : []),
        create("span", { className: "search__section" }, aboutOf(result)),
      ]),
    );
    const { place } = result;
    if (place) {
      const address = this.addressOf(result, place.url);
      const option = this.createOption(`${id}-place`, "search__place", address, [
        marked("search__heading", place.heading),
        ...(place.sentence ? [marked("search__sentence", place.sentence)] : []),
        create("kbd", { className: "search__hint", ariaHidden: "true" }, "→"),
      ]);
      row.append(option);
    }
    return row;
  }

  createOption(id, className, href, content) {
    const option = create(
      "a",
      { id, className, href, role: "option", tabIndex: -1, ariaSelected: "false" },
      ...content,
    );
    option.addEventListener("click", ({ ctrlKey, metaKey, shiftKey }) => {
      if (!ctrlKey && !metaKey && !shiftKey) this.input.blur();
    });
    return option;
  }

  /** Where a link leads; an answer opens in the language of the query. */
  addressOf({ kind, url, language }, target) {
    const address = new URL(target, this.root);
    if (kind === "answer" && target.startsWith(url) && language !== "en") {
      address.searchParams.set("lang", language);
    }
    return address.href;
  }

  linkToAll() {
    const { href } = new URL(ALL_QUESTIONS, this.root);
    return create("a", { href }, "See the list of all questions");
  }

  /** Show a message in place of results, and have it read out. */
  say(...content) {
    this.choose(-1);
    this.list.hidden = true;
    this.message.replaceChildren(...content);
    this.message.hidden = false;
    this.status.textContent = this.message.textContent;
    this.setOpen(true);
  }

  sayFailed() {
    this.say(
      "The search could not be loaded. Check the connection and type again. ",
      this.linkToAll(),
    );
  }

  move(step) {
    const { length } = this.list.children;
    if (length === 0 || this.list.hidden) return;
    const from = this.chosen === -1 && step < 0 ? 0 : this.chosen;
    this.choose((from + step + length) % length);
  }

  /** The option of a row: its question, or its place if it has one. */
  optionOf(row, isPlace) {
    return this.list.children[row]?.children[isPlace ? 1 : 0];
  }

  /** Choose a row's question or place, -1 for none; whether there is one. */
  choose(row, isPlace = false) {
    const option = this.optionOf(row, isPlace);
    if (!option && row >= 0) return false;
    const before = this.optionOf(this.chosen, this.isPlace);
    if (before) before.ariaSelected = "false";
    this.chosen = row;
    this.isPlace = isPlace;
    if (option) {
      option.ariaSelected = "true";
      option.scrollIntoView({ block: "nearest" });
      this.input.setAttribute("aria-activedescendant", option.id);
    } else {
      this.input.removeAttribute("aria-activedescendant");
    }
    return Boolean(option);
  }

  /** Open what is chosen, else the first result, waiting for it if need be. */
  open() {
    const isShown = !this.panel.hidden && !this.list.hidden;
    const option = this.optionOf(Math.max(this.chosen, 0), this.isPlace);
    if (isShown && option) option.click();
    else this.opensFirst = true;
  }

  close() {
    this.choose(-1);
    this.setOpen(false);
    this.status.textContent = "";
  }

  setOpen(isOpen) {
    const isWanted = isOpen && this.host.contains(document.activeElement);
    this.panel.hidden = !isWanted;
    this.input.ariaExpanded = String(isWanted);
  }
}

function isTyping(element) {
  const typed = "input:not([type=radio], [type=checkbox]), select, textarea";
  return element.isContentEditable || element.matches(typed);
}

function isShortcut(event) {
  const { key, ctrlKey, metaKey, altKey, target } = event;
  if (altKey) return false;
  if (ctrlKey !== metaKey) return key.toLowerCase() === "k";
  return key === "/" && !ctrlKey && !isTyping(target);
}

const boxes = [...document.querySelectorAll("[data-search]")].map(
  (host) => new SearchBox(host),
);

const big = boxes.find(({ host }) => "big" in host.dataset);

document.addEventListener("keydown", (event) => {
  const box = [big, ...boxes].find((one) => one?.input.checkVisibility());
  if (box && isShortcut(event)) {
    event.preventDefault();
    box.enter();
  }
});

// A search can be linked to: the large box takes it from ?q=…
const linked = new URLSearchParams(location.search).get("q");
if (linked && big) {
  big.input.value = linked;
  big.input.focus({ preventScroll: true });
}
