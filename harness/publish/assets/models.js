"use strict";
// Shows the models that match the search. The search is in the address, so that it can be shared.
(() => {
  const form = document.querySelector("form.search");
  if (!form) return;
  const rows = [...document.querySelectorAll("table.models tbody tr")];
  const count = document.querySelector(".count");

  function show() {
    const words = form.elements.q.value.trim().toLowerCase().split(/\s+/);
    const wrong = form.elements.wrong.checked;
    let shown = 0;
    for (const row of rows) {
      const fits = words.every((word) => row.dataset.text.includes(word));
      row.hidden = !fits || (wrong && row.dataset.wrong === "no");
      shown += row.hidden ? 0 : 1;
    }
    count.textContent = `${shown} of ${rows.length} models`;
    document.querySelector(".nothing").hidden = shown > 0;
  }

  function read() {
    const words = new URLSearchParams(location.hash.slice(1));
    form.elements.q.value = words.get("q") || "";
    form.elements.wrong.checked = words.has("wrong");
    show();
  }

  function write() {
    show();
    const words = new URLSearchParams();
    if (form.elements.q.value.trim()) words.set("q", form.elements.q.value.trim());
    if (form.elements.wrong.checked) words.set("wrong", "yes");
    const text = words.toString();
    history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
  }

  form.hidden = false;
  form.addEventListener("input", write);
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", read);
  read();
})();
