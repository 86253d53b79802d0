"use strict";
(() => {
  /* A program is laid out where it is seen: a row per micro-batch, or per stage where there are several. */
  const around = "around";

  function actions(code) {
    return [...code.childNodes].flatMap((node) => node.textContent.split(/\s+/).filter(Boolean).map((text) => {
      const [, stage, kind, mb] = text.match(/^(\d*)([FBIWG])(\d+)!?$/) || [];
      return { text, kind, stage: Number(stage || 0), mb: Number(mb || 0), wrong: node.nodeName === "MARK" };
    }));
  }

  function lanes(found) {
    const inner = found.filter((action) => action.kind);
    const several = new Set(inner.map((action) => action.stage)).size > 1;
    const [word, key] = several ? ["stage", "stage"] : ["mb", "mb"];
    const numbers = [...new Set(inner.map((action) => action[key]))].sort((one, other) => one - other);
    const names = numbers.map((number) => `${word} ${number}`);
    if (inner.length < found.length) names.push(around);
    return [names, (action) => (action.kind ? `${word} ${action[key]}` : around)];
  }

  function part(text, name, row, column) {
    const made = document.createElement("span");
    made.textContent = text;
    made.className = name;
    made.style.gridRow = row;
    made.style.gridColumn = column;
    return made;
  }

  function draw(code) {
    const found = actions(code);
    if (!found.length || code.classList.contains("drawn")) return;
    const [names, lane] = lanes(found);
    const wrong = found.find((action) => action.wrong);
    const program = found.map((action) => action.text).join(" ");
    code.setAttribute("role", "img");
    code.setAttribute("aria-label", `program ${program}${wrong ? `; first wrong action: ${wrong.text}` : ""}`);
    code.replaceChildren(
      ...names.map((name, index) => part(name, "lane", index + 1, 1)),
      ...found.map((action, index) => part(action.text,
        ["action", action.kind, action.wrong && "wrong"].filter(Boolean).join(" "), names.indexOf(lane(action)) + 1, index + 2)),
    );
    code.classList.add("program", "drawn");
    code.tabIndex = 0;
  }

  const list = document.getElementById("rows");
  const form = document.getElementById("controls");
  const topics = list ? [...list.children] : [];
  const rows = topics.flatMap((topic) => [...topic.querySelectorAll(":scope > :is(details, p:not(.shared))")]);
  const home = new Map(rows.map((row) => [row, row.parentElement]));
  const check = (row) => head(row)[0].textContent.trim();

  /* What stands in the line of a row: its id, and per run a status, headroom and duration. */
  function head(row) {
    const nodes = [...(row.querySelector("summary") ?? row).childNodes];
    const end = nodes.findIndex((node) => node.nodeName === "BR");
    return end < 0 ? nodes : nodes.slice(0, end);
  }

  /* The shares of the statuses of a topic, as its counts say. */
  function bar(counts) {
    const made = document.createElement("span");
    made.className = "bar";
    made.setAttribute("aria-hidden", "true");
    made.append(...counts.split(", ").map((count) => {
      const [, number, status] = count.match(/^(\d+) (.+)$/);
      const share = document.createElement("i");
      share.className = `s-${status.replaceAll(" ", "_")}`;
      share.style.flexGrow = number;
      return share;
    }));
    return made;
  }

  /* The file spares what follows from the text of a topic and its rows. */
  if (list) {
    const one = new Set([...document.querySelectorAll("[data-set-cell]")].map((link) => link.dataset.setCell));
    for (const topic of topics) {
      const counts = topic.querySelector(":scope > summary > small");
      if (counts.textContent.includes(", ")) counts.before(bar(counts.textContent), " ");
    }
    for (const row of rows) {
      const name = head(row)[0], topic = home.get(row).querySelector(":scope > summary > span").textContent;
      if (check(row).startsWith(".")) name.textContent = `${topic}${name.textContent.trimStart()}`;
      const cell = row.dataset.cell ?? [...one][0] ?? "";
      row.id ||= `${check(row)}[${cell.replace(/ (?=\S+$)/, "-")}]`.replace(/\s+/g, "_");
      if (row.nodeName === "DETAILS") for (const code of row.querySelectorAll(":scope > code")) code.className = "program";
    }
  }

  const byName = new Map(rows.flatMap((row) => [[check(row), row], [row.id, row]]));

  /* Names of checks become links where they are seen; those of one topic stand in braces after it. */
  function linked(names) {
    const each = names.textContent.replace(/(\S+\.)\{([^{}]+)\}/g, (_, topic, cases) => cases.split(" ").map((one) => topic + one).join(" "));
    names.replaceChildren(...each.split(/\s+/).filter(Boolean).flatMap((name) => {
      const made = document.createElement("a");
      made.textContent = name;
      if (byName.has(name)) made.href = `#${encodeURIComponent(byName.get(name).id)}`;
      return [made, " "];
    }));
    names.removeAttribute("data-ids");
  }

  function show(part) {
    for (const names of part.querySelectorAll("[data-ids]")) if (names.parentElement === part) linked(names);
    for (const code of part.querySelectorAll(".program")) if (code.closest("details") === part) draw(code);
  }

  document.addEventListener("toggle", (event) => event.target.open && show(event.target), { capture: true });
  for (const open of document.querySelectorAll("details[open]")) show(open);
  if (!list || !form) return;

  const search = document.getElementById("search");
  const filters = [...form.querySelectorAll("[data-filter]")];
  const orders = [...document.querySelectorAll("[data-sort]")];
  const values = new Map();
  const opened = new Set();
  const meanings = new Map([...document.querySelectorAll(".meanings dt")].map((name) => [name.textContent.trim(), name.nextElementSibling.textContent]));
  const meant = (text) => text.split(/[^\w-]+/).map((word) => meanings.get(word) ?? "").join(" ");

  /* What a row is looked for by is read from it once. */
  function known(row) {
    if (!values.has(row)) {
      const topic = home.get(row), line = head(row);
      const of = (name) => line.filter((node) => node.nodeName === name).map((node) => node.textContent);
      const durations = of("#text").map((text) => text.match(/^\s*([\d.e+-]+) (ms|s)\s*$/)).filter(Boolean);
      values.set(row, {
        text: `${topic.querySelector(":scope > .shared")?.textContent ?? ""} ${row.textContent} ${meant(row.textContent)}`.toLowerCase(),
        status: of("B"),
        area: topic.dataset.area,
        level: row.dataset.level ?? "MUST",
        differs: "differs" in row.dataset ? "yes" : "no",
        headroom: Math.max(-1, ...of("I").map(Number)),
        duration: Math.max(-1, ...durations.map(([, number, unit]) => number * (unit === "ms" ? 0.001 : 1))),
      });
    }
    return values.get(row);
  }

  const severities = ["error", "failed", "unexpectedly passed", "waived", "not run", "unsupported", "passed"];
  const severity = (row) => 2 * Math.min(...known(row).status.map((status) => severities.indexOf(status)).filter((rank) => rank >= 0)) + Number(known(row).level !== "MUST");

  const value = (control) => (control.type === "checkbox" ? (control.checked ? "yes" : "") : control.value);

  function apply() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const asked = filters.map((control) => [control.dataset.filter, value(control)]).filter(([, wanted]) => wanted);
    let shown = 0;
    for (const row of rows) {
      const meetsAll = asked.every(([name, wanted]) =>
        name === "cell" ? (row.dataset.cell ?? wanted) === wanted : name === "status" ? known(row).status.includes(wanted.replaceAll("_", " ")) : known(row)[name] === wanted);
      row.hidden = !(meetsAll && words.every((word) => known(row).text.includes(word)));
      shown += !row.hidden;
    }
    for (const topic of topics) {
      const own = rows.filter((row) => row.parentElement === topic);
      const hit = own.some((row) => !row.hidden);
      topic.hidden = !hit;
      if (hit && asked.length + words.length && !topic.open) {
        topic.open = true;
        opened.add(topic);
      } else if (!(asked.length + words.length) && opened.delete(topic)) {
        topic.open = false;
      }
    }
    document.getElementById("shown").textContent = `${shown} of ${rows.length} shown`;
    document.getElementById("nothing").hidden = shown > 0;
  }

  const ranks = { verdict: severity, headroom: (row) => known(row).headroom, duration: (row) => known(row).duration };

  function sort(button) {
    const name = button.dataset.sort;
    const pressed = button.getAttribute("aria-pressed") === "true";
    const down = pressed ? button.dataset.down !== "yes" : name === "headroom" || name === "duration";
    for (const other of orders) {
      other.setAttribute("aria-pressed", String(other === button));
      delete other.dataset.down;
    }
    if (down) button.dataset.down = "yes";
    if (name === "topic") {
      for (const row of rows) home.get(row).append(row);
      list.append(...(down ? [...topics].reverse() : topics));
    } else {
      const rank = ranks[name];
      list.append(...[...rows].sort((one, other) => (down ? rank(other) - rank(one) : rank(one) - rank(other))));
    }
    apply();
  }

  /* What the address names is shown, whatever the filters hide. */
  function follow() {
    let name;
    try { name = decodeURIComponent(location.hash.slice(1)); } catch { return; }
    const found = document.getElementById(name);
    if (!found || !home.has(found)) return;
    if (found.hidden) { form.reset(); apply(); }
    opened.delete(found.parentElement);
    found.parentElement.open = true;
    found.open = true;
    found.scrollIntoView();
    const line = found.querySelector("summary") ?? found;
    if (line === found) line.tabIndex = -1;
    line.focus({ preventScroll: true });
  }

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
