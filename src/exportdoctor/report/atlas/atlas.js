const models = Array.from(document.querySelectorAll("#models > details"), (row) => [row, row.textContent.toLowerCase()]);
const search = document.getElementById("search");
const chips = Array.from(document.querySelectorAll("#chips > button"));
function show() {
  const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const pressed = chips.filter((chip) => chip.getAttribute("aria-pressed") === "true").map((chip) => chip.dataset.verdict);
  let count = 0;
  for (const [row, text] of models) {
    const chosen = pressed.length === 0 || pressed.includes(row.dataset.verdict);
    row.hidden = !(chosen && wanted.every((word) => text.includes(word)));
    if (!row.hidden) count += 1;
  }
  document.getElementById("shown").textContent = `${count} of ${models.length}`;
}
for (const chip of chips) {
  chip.addEventListener("click", () => {
    chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") !== "true"));
    show();
  });
}
search.addEventListener("input", show);
show();
