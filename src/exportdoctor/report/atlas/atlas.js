const models = Array.from(document.querySelectorAll("#models > details"), (row) => [row, row.textContent.toLowerCase()]);
const search = document.getElementById("search");
function show() {
  const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const [row, text] of models) {
    row.hidden = !wanted.every((word) => text.includes(word));
    if (!row.hidden) count += 1;
  }
  document.getElementById("shown").textContent = `${count} of ${models.length}`;
}
search.addEventListener("input", show);
show();
