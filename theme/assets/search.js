/**
 * The search box: turns each `[data-search]` host into a combobox.
 *
 * Markup: theme/partials/search-box.html. Without this script the form leads
 * to the list of all questions. The index and the library are fetched when the
 * reader first touches a box, and are shared by all boxes of a page.
 *
 * Keys: "/" and Ctrl-K or ⌘-K go to the box; the arrows choose a result, Enter
 * opens it (the first, if none is chosen), Escape returns to the page.
 */

const MAX_RESULTS = 8;
/** The message that the search is loading waits so long, in milliseconds. */
const LOADING_DELAY = 100;
const ALL_QUESTIONS = "questions/";
/** Android keyboards compose every Latin word too: there, results can't wait. */
const COMPOSES_EVERYTHING = /Android/.test(navigator.userAgent);

let engine;

/** Fetch library and index, once; after a failure the next call tries again. */
function loadEngine(root) {
  engine ??= fetchEngine(root).catch((error) => {
    engine = undefined;
    throw error;
  });
  return engine;
}

async function fetchEngine(root) {
  const [{ default: MiniSearch }, core, response] = await Promise.all([
    import("./minisearch.js"),
    import("./search-core.js"),
    fetch(new URL("search/index.json", root)),
  ]);
  if (!response.ok) throw new Error(`${response.url}: ${response.status}`);
  const index = await core.buildIndex(MiniSearch, await response.json());
  return { ...core, index };
}

/** An element with properties and children; strings become text. */
function create(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

class SearchBox {
  constructor(host) {
    this.host = host;
    this.form = host.querySelector("form");
    this.input = host.querySelector('input[type="search"]');
    this.root = new URL(`${host.dataset.base}/`, document.baseURI);
    this.active = -1;
    this.opensFirst = false;
    this.createPanel();
    this.listen();
  }

  createPanel() {
    const { id } = this.input;
    this.list = create("div", { id: `${id}-results`, role: "listbox" });
    this.list.ariaLabel = "Answers";
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
      loadEngine(this.root).catch(() => {}); // `update` reports a failure
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
    const loaded = await loadEngine(this.root).catch(console.error);
    clearTimeout(timer);
    if (!isCurrent()) return;
    if (loaded) this.show(query, loaded);
    else this.sayFailed();
  }

  show(query, { search, index, highlight, languageOf }) {
    const results = search(index, query, MAX_RESULTS);
    const options = results.map((result, i) =>
      this.createOption(result, i, highlight, languageOf),
    );
    this.choose(-1);
    this.list.replaceChildren(...options);
    if (results.length === 0) {
      this.say(`No answer matches “${query}”. `, this.linkToAll());
      return;
    }
    this.message.hidden = true;
    this.list.hidden = false;
    this.status.textContent =
      results.length === 1 ? "1 answer" : `${results.length} answers`;
    this.setOpen(true);
    if (this.opensFirst) this.open();
  }

  createOption(result, i, highlight, languageOf) {
    const marked = (className, text) =>
      create(
        "span",
        { className, lang: languageOf(text) },
        ...highlight(text, result.terms).map((piece) =>
          piece.hit ? create("mark", {}, piece.text) : piece.text,
        ),
      );
    const address = new URL(result.url, this.root);
    if (result.anchor) address.hash = result.anchor;
    const option = create(
      "a",
      {
        id: `${this.list.id}-${i}`,
        className: "search__result",
        href: address.href,
        role: "option",
        tabIndex: -1,
        ariaSelected: "false",
      },
      marked("search__question", result.question),
      marked("search__sentence", result.sentence),
      create("span", { className: "search__section" }, result.section),
    );
    option.addEventListener("click", ({ ctrlKey, metaKey, shiftKey }) => {
      if (!ctrlKey && !metaKey && !shiftKey) this.input.blur();
    });
    return option;
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
    const from = this.active === -1 && step < 0 ? 0 : this.active;
    this.choose((from + step + length) % length);
  }

  choose(i) {
    const options = this.list.children;
    if (options[this.active]) options[this.active].ariaSelected = "false";
    this.active = i;
    const option = options[i];
    if (option) {
      option.ariaSelected = "true";
      option.scrollIntoView({ block: "nearest" });
      this.input.setAttribute("aria-activedescendant", option.id);
    } else {
      this.input.removeAttribute("aria-activedescendant");
    }
  }

  /** Open the chosen result, else the first, waiting for it if need be. */
  open() {
    const isShown = !this.panel.hidden && !this.list.hidden;
    const option = this.list.children[Math.max(this.active, 0)];
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
