// Filters every [data-filter] list of the page as one types; ?filter= keeps it.
(() => {
  const lists = [...document.querySelectorAll("[data-filter]")];
  if (!lists.length) return;

  const fold = (text) => text.toLowerCase().normalize("NFD").replace(/\p{M}/gu, "").replace(/đ/g, "d");
  const rows = lists.flatMap((list) => [...list.children].map((row) => {
    const text = fold(`${row.textContent} ${row.dataset.words || ""}`);
    const numbers = fold(row.querySelector(".number")?.textContent || "").split(/[\s,]+/);
    return { row, list, numbers, text: `${text} ${text.replace(/-/g, " ")}` };
  }));

  // "b4" and "c1" begin the number under which a question was asked: they
  // match no other text.
  const isNumber = (word) => /\d/.test(word) && rows.some(({ numbers }) => numbers.some((n) => n.startsWith(word)));

  // The headings that stand over each list, up to the one before it.
  const headings = new Map();
  for (const list of lists) {
    for (let e = list.previousElementSibling; e && !lists.includes(e); e = e.previousElementSibling) {
      if (/^H[2-6]$/.test(e.tagName)) headings.set(e, [...(headings.get(e) || []), list]);
    }
  }

  const box = document.createElement("div");
  box.className = "filter";
  box.setAttribute("role", "search");
  box.setAttribute("aria-label", "Filter this list");
  const input = document.createElement("input");
  input.type = "search";
  input.placeholder = "Filter: number, word, tag";
  input.setAttribute("aria-label", "Filter this list");
  input.autocomplete = "off";
  input.spellcheck = false;
  const said = document.createElement("span");
  said.setAttribute("role", "status");
  box.append(input, said);
  const count = document.querySelector(".count");
  if (count) count.after(box);
  else ([...headings].find(([, own]) => own.includes(lists[0]))?.[0] || lists[0]).before(box);

  const apply = () => {
    const words = fold(input.value).split(/\s+/).filter(Boolean);
    const left = new Map(lists.map((list) => [list, 0]));
    const asked = new Set(words.filter(isNumber));
    for (const { row, list, numbers, text } of rows) {
      const fits = words.every((word) => (asked.has(word) ? numbers.some((n) => n.startsWith(word)) : text.includes(word)));
      row.hidden = !fits;
      if (fits) left.set(list, left.get(list) + 1);
    }
    for (const [list, n] of left) list.classList.toggle("is-empty", !n);
    for (const [heading, own] of headings) heading.hidden = own.every((list) => !left.get(list));
    const shown = [...left.values()].reduce((a, b) => a + b, 0);
    said.textContent = words.length ? `${shown} of ${rows.length}` : "";
  };

  const keep = () => {
    const url = new URL(location);
    if (input.value.trim()) url.searchParams.set("filter", input.value.trim());
    else url.searchParams.delete("filter");
    history.replaceState(history.state, "", url);
  };

  input.addEventListener("input", () => { apply(); keep(); });
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !input.value) return;
    input.value = "";
    apply();
    keep();
  });
  input.value = new URLSearchParams(location.search).get("filter") || "";
  if (input.value) apply();
})();
