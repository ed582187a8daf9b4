/**
 * The language of the short answers: which tab they open on.
 *
 * ?lang= in the address wins, then the reader's last choice, then what the
 * browser asks for. Material keeps the labels of chosen tabs in "__tabs", the
 * latest first, and opens all tabs by it when the page has been read; on a slow
 * line that is after the first paint. So this runs in the head, and opens the
 * tab as soon as it is there.
 */
(() => {
  const LABELS = { en: "English", zh: "中文", vi: "Tiếng Việt" };
  const labels = Object.values(LABELS);
  const kept = __md_get("__tabs") ?? [];

  const asked = LABELS[new URLSearchParams(location.search).get("lang")];
  const last = kept.find((label) => labels.includes(label));
  const codes = navigator.languages.map((tag) => tag.slice(0, 2).toLowerCase());
  const native = LABELS[codes.find((code) => code in LABELS)];
  const chosen = asked ?? last ?? native;
  if (!chosen) return;
  if (chosen !== last) {
    __md_set("__tabs", [chosen, ...kept.filter((label) => label !== chosen)]);
  }

  const watch = new MutationObserver(() => {
    const tabs = [...document.querySelectorAll(".tabbed-labels > label")];
    const tab = tabs.find((label) => label.textContent === chosen);
    if (!tab) return;
    tab.control.checked = true;
    watch.disconnect();
  });
  watch.observe(document, { childList: true, subtree: true });
  addEventListener("DOMContentLoaded", () => watch.disconnect());

  // Once a tab is chosen by hand, the address names that language.
  addEventListener("change", ({ target }) => {
    const label = target.labels?.[0]?.textContent.trim();
    const code = Object.keys(LABELS).find((one) => LABELS[one] === label);
    const url = new URL(location);
    if (!code || !url.searchParams.has("lang")) return;
    url.searchParams.set("lang", code);
    history.replaceState(history.state, "", url);
  });
})();
