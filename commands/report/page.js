"use strict";
const tables = [];
const menus = document.getElementById("filters");
const chosen = (element, name) => {
  const wanted = menus ? menus.elements[name] : null;
  const own = element.dataset[name];
  return !wanted || !wanted.value || own === undefined || JSON.parse(own).includes(wanted.value);
};
const show = (element, matches) => {
  element.hidden = !(matches && chosen(element, "namespace") && chosen(element, "cause"));
  return element.hidden ? 0 : 1;
};
for (const table of document.querySelectorAll("table")) {
  const rows = table.querySelectorAll("tbody tr");
  const label = document.querySelector('label[data-table="' + table.id + '"]');
  const filter = () => {
    const words = label ? label.querySelector("input").value.toLowerCase().split(/\s+/).filter(Boolean) : [];
    let shown = 0;
    for (const row of rows) {
      const text = words.length ? row.textContent.toLowerCase() : "";
      shown += show(row, words.every((word) => text.includes(word)));
    }
    const count = shown === rows.length ? "" : shown + " of " + rows.length + " rows";
    if (label) label.querySelector("output").textContent = count;
  };
  tables.push(filter);
  if (label) {
    label.hidden = false;
    label.addEventListener("input", filter);
  }
}
if (menus) {
  menus.hidden = false;
  menus.addEventListener("change", () => {
    for (const filter of tables) filter();
    for (const topic of document.querySelectorAll(".topics li")) show(topic, true);
  });
}
