"use strict";
for (const label of document.querySelectorAll("label[hidden]")) {
  const rows = document.querySelectorAll("#" + label.dataset.table + " tbody tr");
  const input = label.querySelector("input");
  const count = label.querySelector("output");
  const filter = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    count.textContent = shown + " of " + rows.length + " rows";
  };
  label.hidden = false;
  input.addEventListener("input", filter);
  filter();
}
