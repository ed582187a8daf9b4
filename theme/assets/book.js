// Small comforts; the book reads without them.
(() => {
  const menu = document.querySelector(".menu");
  if (menu) {
    const close = () => { menu.open = false; };
    menu.addEventListener("click", (event) => { if (event.target.closest("a")) close(); });
    document.addEventListener("click", (event) => { if (!menu.contains(event.target)) close(); });
    menu.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !menu.open) return;
      close();
      menu.querySelector("summary").focus();
    });
  }

  // What scrolls sideways can be reached by the keyboard; what does not, is no stop.
  const reach = () => {
    for (const box of document.querySelectorAll("div.tex, .wide, pre > code")) {
      const scrolls = box.scrollWidth > box.clientWidth + 1;
      if (scrolls) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
      if (box.matches(".wide")) box.classList.toggle("scrolls", scrolls);
    }
  };
  reach();
  addEventListener("resize", reach);
  document.addEventListener("toggle", reach, true);
  if (document.fonts) document.fonts.ready.then(reach);

  if (navigator.clipboard) {
    for (const box of document.querySelectorAll(".md-content .highlight:not(.doc-signature)")) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "copy";
      button.textContent = "Copy";
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(box.querySelector("code").textContent);
        button.textContent = "Copied";
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      });
      box.append(button);
    }
  }

  // A link to something inside a closed follow-up opens it; paper shows them all.
  const reveal = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let box = target && target.closest("details:not(.menu)"); box; box = box.parentElement.closest("details")) box.open = true;
  };
  reveal();
  addEventListener("hashchange", reveal);

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll(".md-content details:not([open], .mkdocstrings-source)")];
    for (const box of opened) box.open = true;
    for (const image of document.querySelectorAll("img.only-light")) image.loading = "eager";
  });
  addEventListener("afterprint", () => { for (const box of opened) box.open = false; });
})();
