"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("script");
  const button = document.querySelector("button.theme");
  const themes = ["", "light", "dark"], names = ["theme: system", "theme: light", "theme: dark"];
  let now = 0;
  button.addEventListener("click", () => {
    now = (now + 1) % 3;
    if (now) root.dataset.theme = themes[now]; else delete root.dataset.theme;
    button.textContent = names[now];
  });
  const value = (row, place) => {
    const cell = row.children[place];
    const given = cell.dataset.value;
    return given === undefined ? cell.textContent : Number(given);
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, place) => {
      if (!head.textContent) return;
      const knob = document.createElement("button");
      knob.type = "button";
      knob.textContent = head.textContent;
      head.replaceChildren(knob);
      knob.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach(other => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = [...table.tBodies[0].rows];
        rows.sort((one, two) => {
          const a = value(one, place), b = value(two, place);
          const order = typeof a === "number" ? a - b : a.localeCompare(b, undefined, {numeric: true});
          return up ? order : -order;
        });
        table.tBodies[0].append(...rows);
      });
    });
  }
  window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(part => { part.open = true; }));
})();
