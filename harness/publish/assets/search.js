"use strict";
// Shows the bugs that match the search. The search is in the address, so that it can be shared.
(() => {
  const form = document.querySelector("form.search");
  const bugs = [...document.querySelectorAll("li.bug")];
  const elsewhere = [...document.querySelectorAll("ul.elsewhere li")];
  const most = 12;  // links to other pages that are shown
  const count = document.querySelector(".count");
  const fields = ["q", "upstream", "harm", "visibility", "lane"];

  function searched() {
    const words = new URLSearchParams();
    for (const name of fields) {
      const value = form.elements[name].value.trim();
      if (value) words.set(name, value);
    }
    if (form.elements.alive.checked) words.set("alive", "yes");
    return words;
  }

  function fits(bug, words) {
    const text = bug.dataset.text;
    const every = (words.get("q") || "").toLowerCase().split(/\s+/).every((word) => text.includes(word));
    return every
      && (!words.has("upstream") || bug.dataset.upstream === words.get("upstream"))
      && (!words.has("harm") || bug.dataset.harm === words.get("harm"))
      && (!words.has("visibility") || bug.dataset.visibility === words.get("visibility"))
      && (!words.has("lane") || bug.dataset.lanes.split(" ").includes(words.get("lane")))
      && (!words.has("alive") || bug.dataset.alive === "yes");
  }

  function show() {
    const words = searched();
    let shown = 0;
    for (const bug of bugs) {
      bug.hidden = !fits(bug, words);
      shown += bug.hidden ? 0 : 1;
    }
    const wanted = (words.get("q") || "").toLowerCase().split(/\s+/).filter(Boolean);
    let others = 0;
    for (const link of elsewhere) {
      link.hidden = !wanted.length || others >= most || !wanted.every((word) => link.dataset.text.includes(word));
      others += link.hidden ? 0 : 1;
    }
    count.textContent = `${shown} of ${bugs.length} bugs`;
    document.querySelector(".nothing").hidden = shown > 0;
    return words;
  }

  function read() {
    const words = new URLSearchParams(location.hash.slice(1));
    for (const name of fields) form.elements[name].value = words.get(name) || "";
    form.elements.alive.checked = words.has("alive");
    show();
  }

  function write() {
    const words = show().toString();
    history.replaceState(null, "", words ? `#${words}` : location.pathname + location.search);
  }

  form.hidden = false;
  form.addEventListener("input", write);
  form.addEventListener("change", write);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(write));
  addEventListener("hashchange", read);
  read();
})();
