"use strict";
const all = (selector, within = document) => Array.from(within.querySelectorAll(selector));
const one = (selector, within = document) => within.querySelector(selector);
const make = (tag, text, parent) => {
  const made = document.createElement(tag);
  made.textContent = text;
  parent.append(made);
  return made;
};

// dark and light
function switchTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
}
make("button", "Dark or light", one("header")).addEventListener("click", switchTheme);
one("header").insertBefore(one("header button"), one("header p"));

// copies
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = make("textarea", text, document.body);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
for (const block of all("pre[data-copy]")) {
  const text = block.textContent;
  const button = make("button", "Copy", block);
  button.className = "copy";
  button.addEventListener("click", async () => {
    button.textContent = (await copy(text)) ? "Copied" : "Select and copy by hand";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}

// the tree: every row with the full names of the submodules that it stands for
const join = (above, name) => (above && name ? `${above}.${name}` : above || name);
const rows = [];
function readRows(list, part, above) {
  for (const item of list.children) {
    const names = item.dataset.names.split("\n");
    const full = names.flatMap((name) => above.map((outer) => join(outer, name)));
    const row = { item, part, names: full, details: one(":scope > details", item), line: one(":scope > details > summary, :scope > div", item) };
    row.texts = full.map((name) => `${name} ${item.dataset.class} ${row.line.textContent} ${item.className}`.toLowerCase());
    row.wasOpen = row.details ? row.details.open : false;
    rows.push(row);
    const below = one(":scope > details > ul", item);
    if (below) readRows(below, part, full);
  }
}
for (const tree of all(".tree")) if (one("ul", tree)) readRows(one("ul", tree), tree.dataset.part, [""]);

const search = one("#search");
const chips = all(".chip");
function filter() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const wanted = chips.filter((chip) => chip.getAttribute("aria-pressed") === "true").map((chip) => chip.dataset.status);
  const filtered = words.length > 0 || wanted.length > 0;
  let count = 0, total = 0;
  const keep = new Set(), opened = new Set();
  for (const row of rows) {
    const matching = row.texts.filter((text) => words.every((word) => text.includes(word))).length;
    total += row.names.length;
    if (!matching || (wanted.length && !wanted.includes(row.item.className))) continue;
    count += matching;
    keep.add(row.item);
    for (let above = row.item.parentElement.closest("li"); above; above = above.parentElement.closest("li")) {
      keep.add(above);
      opened.add(above);
    }
  }
  for (const row of rows) {
    row.item.hidden = filtered && !keep.has(row.item);
    if (row.details) row.details.open = filtered ? opened.has(row.item) : row.wasOpen;
  }
  one("#shown").textContent = filtered ? (count ? `${count} of ${total} submodules` : "No submodule matches.") : `${total} submodules`;
}
search.addEventListener("input", filter);
for (const chip of chips) {
  chip.addEventListener("click", () => {
    chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") !== "true"));
    filter();
  });
}
const foldAll = (open) => { for (const row of rows) if (row.details) row.details.open = row.wasOpen = open; };
one("#fold").addEventListener("click", () => foldAll(false));
one("#unfold").addEventListener("click", () => foldAll(true));

// tabs
const findings = all(".finding");
for (const pane of findings) {
  const tabs = all(".tab", pane);
  const list = document.createElement("div");
  list.setAttribute("role", "tablist");
  pane.insertBefore(list, tabs[0]);
  pane.classList.add("tabbed");
  tabs.forEach((tab, number) => {
    const button = make("button", tab.dataset.name, list);
    button.type = "button";
    button.setAttribute("role", "tab");
    const address = tab.id;
    tab.id = `tab:${address}`; // or else the browser would scroll at each change of tab
    button.setAttribute("aria-controls", tab.id);
    tab.setAttribute("role", "tabpanel");
    tab.setAttribute("aria-label", tab.dataset.name);
    button.addEventListener("click", () => { location.hash = address; });
    button.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = list.children[(number + step + tabs.length) % tabs.length];
      next.click();
      next.focus();
    });
  });
}
function showTab(pane, key) {
  const tabs = all(".tab", pane);
  const chosen = tabs.find((tab) => tab.dataset.tab === key) || tabs[0];
  tabs.forEach((tab, number) => {
    tab.hidden = tab !== chosen;
    const button = one("[role=tablist]", pane).children[number];
    button.setAttribute("aria-selected", String(tab === chosen));
    button.tabIndex = tab === chosen ? 0 : -1;
  });
}

// one finding or submodule at a time; the address says which
const module = one("#module");
function choose(row) {
  for (const old of all(".chosen")) old.classList.remove("chosen");
  if (!row) return;
  row.line.classList.add("chosen");
  for (let above = row.item.parentElement.closest("details"); above; above = above.parentElement.closest("details")) above.open = true;
}
function showFinding(pane, key) {
  module.hidden = true;
  for (const other of findings) other.hidden = other !== pane;
  if (pane) showTab(pane, key);
}
function showModule(row, name) {
  const [title, kind, why, inputs] = module.children;
  title.textContent = name || "(root)";
  kind.textContent = [row.part, row.item.dataset.class].filter(Boolean).join(" · ");
  why.textContent = row.item.dataset.why;
  const number = row.item.dataset.inputs;
  inputs.hidden = number === undefined;
  if (!inputs.hidden) inputs.textContent = one("#texts").children[Number(number)].textContent;
  module.hidden = false;
  for (const pane of findings) pane.hidden = true;
}
function go(first) {
  let hash = location.hash.slice(1);
  try { hash = decodeURIComponent(hash); } catch { /* as it is */ }
  const [id, key] = hash.split("/");
  const pane = findings.find((each) => each.dataset.finding === id);
  if (pane) {
    showFinding(pane, key);
    choose(rows.find((row) => one(`:scope > .badge`, row.line)?.textContent === id));
    if (first) pane.scrollIntoView();
    else if (!key) pane.scrollIntoView({ block: "nearest" });
    return;
  }
  for (const row of rows) {
    const name = hash.startsWith(`${row.part}:`) ? hash.slice(row.part.length + 1) : null;
    if (name === null || !row.names.includes(name)) continue;
    const badge = one(":scope > .badge", row.line);
    if (badge) showFinding(findings.find((each) => each.dataset.finding === badge.textContent));
    else showModule(row, name);
    choose(row);
    (badge ? one(".finding:not([hidden])") : module)?.scrollIntoView({ block: "nearest" });
    return;
  }
  if (first) showFinding(findings.find((each) => each.dataset.finding === document.body.dataset.start) || findings[0]);
}
addEventListener("hashchange", () => go(false));

// keys
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.target === search) {
    if (event.key === "Escape") { search.value = ""; filter(); search.blur(); }
    return;
  }
  const here = findings.findIndex((pane) => !pane.hidden);
  const step = { n: 1, p: -1 }[event.key];
  if (event.key === "/") { event.preventDefault(); search.focus(); }
  else if (event.key === "t") switchTheme();
  else if (step && findings.length) location.hash = findings[(here + step + findings.length) % findings.length].id;
});

filter();
go(true);
