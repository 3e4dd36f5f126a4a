"use strict";
const search = document.getElementById("search");
const found = document.getElementById("found");
const rows = Array.from(document.querySelectorAll("#packages tbody tr"), row => [row, row.textContent.toLowerCase()]);
// Without scripts the whole list stands there, and no field that does nothing.
document.querySelector(".search").hidden = false;
document.querySelector(".count").hidden = true;
function show() {
  const words = search.value.toLowerCase().split(/\s+/).filter(word => word);
  let count = 0;
  for (const [row, text] of rows) {
    const fits = words.every(word => text.includes(word));
    row.hidden = !fits;
    count += fits;
  }
  found.textContent = `${count} of ${rows.length}`;
}
search.addEventListener("input", show);
show();
