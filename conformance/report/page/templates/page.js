"use strict";
(() => {
  const list = document.getElementById("rows");
  const form = document.getElementById("controls");
  if (!list || !form) return;
  const rows = [...list.children];
  const search = document.getElementById("search");
  const filters = [...form.querySelectorAll("[data-filter]")];
  const orders = [...document.querySelectorAll("[data-sort]")];
  const texts = new Map();

  const text = (row) => {
    if (!texts.has(row)) texts.set(row, row.textContent.toLowerCase());
    return texts.get(row);
  };

  const value = (control) => (control.type === "checkbox" ? (control.checked ? "yes" : "") : control.value);

  function apply() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const asked = filters.map((control) => [control.dataset.filter, value(control)]).filter(([, wanted]) => wanted);
    let shown = 0;
    for (const row of rows) {
      const meets = asked.every(([name, wanted]) =>
        name === "status" ? row.dataset.status.split(" ").includes(wanted) : row.dataset[name] === wanted);
      row.hidden = !(meets && words.every((word) => text(row).includes(word)));
      shown += !row.hidden;
    }
    document.getElementById("shown").textContent = `${shown} of ${rows.length} shown`;
    document.getElementById("nothing").hidden = shown > 0;
  }

  function sort(button) {
    const name = button.dataset.sort;
    const again = button.getAttribute("aria-pressed") === "true";
    const down = again ? button.dataset.down !== "yes" : name === "headroom" || name === "duration";
    for (const other of orders) {
      other.setAttribute("aria-pressed", String(other === button));
      delete other.dataset.down;
    }
    if (down) button.dataset.down = "yes";
    const compare = name === "check"
      ? (one, other) => (one.dataset.check < other.dataset.check ? -1 : Number(one.dataset.check > other.dataset.check))
      : (one, other) => Number(one.dataset[name]) - Number(other.dataset[name]);
    rows.sort((one, other) => (down ? compare(other, one) : compare(one, other)));
    list.append(...rows);
  }

  /* What the address names is shown, whatever the filters hide. */
  function follow() {
    let name;
    try { name = decodeURIComponent(location.hash.slice(1)); } catch { return; }
    const found = document.getElementById(name);
    if (!found || !found.classList.contains("row")) return;
    if (found.hidden) { form.reset(); apply(); }
    found.open = true;
    found.scrollIntoView();
    found.querySelector("summary").focus({ preventScroll: true });
  }

  /* Thousands of drawings that nobody has opened would cost more than all the rest of the page. */
  function draw(row) {
    for (const drawing of row.querySelectorAll("svg[data-drawing]:empty")) {
      const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
      use.setAttribute("href", `#${drawing.dataset.drawing}`);
      drawing.append(use);
    }
  }

  list.addEventListener("toggle", (event) => draw(event.target), { capture: true });
  for (const event of ["input", "change"]) form.addEventListener(event, apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(apply));
  for (const button of orders) button.addEventListener("click", () => sort(button));
  for (const button of document.querySelectorAll("[data-clear]")) button.addEventListener("click", () => form.reset());

  /* A count or a cell of the matrix shows the checks that it counts. */
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href]");
    if (!link) return;
    const set = filters.filter((control) => link.hasAttribute(`data-set-${control.dataset.filter}`));
    if (set.length) {
      form.reset();
      for (const control of set) control.value = link.getAttribute(`data-set-${control.dataset.filter}`);
      setTimeout(apply);
    } else if (link.hash === location.hash) {
      follow();
    }
  });
  addEventListener("hashchange", follow);
  apply();
  follow();
})();
