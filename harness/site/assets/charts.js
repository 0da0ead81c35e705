"use strict";
// Draws each chart of a page in the colours of its scheme, and anew when that changes.
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const drawn = [];

  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  function filled(part) {
    if (typeof part === "string") return part.startsWith("var:") ? colour(part.slice(4)) : part;
    if (Array.isArray(part)) return part.map(filled);
    if (part && typeof part === "object") {
      return Object.fromEntries(Object.entries(part).map(([key, value]) => [key, filled(value)]));
    }
    return part;
  }

  function config(width) {
    const ink = colour("--ink"), dim = colour("--dim"), line = colour("--line");
    const narrow = width < 480;
    const font = getComputedStyle(document.body).fontFamily;
    return {
      background: "transparent", font,
      view: { stroke: null },
      axis: {
        labelColor: dim, titleColor: dim, domainColor: line, tickColor: line, gridColor: line,
        labelLimit: narrow ? 110 : 360, titleFontWeight: "normal", labelFontSize: 11, titleFontSize: 12, titlePadding: 8,
      },
      legend: {
        orient: "top", direction: "horizontal", columns: narrow ? 2 : 4, labelColor: ink, titleColor: dim,
        labelFontSize: 12, labelLimit: narrow ? 120 : 260, symbolStrokeWidth: 2, symbolSize: 90, offset: 8,
      },
      text: { color: ink, fontSize: 11 },
    };
  }

  async function draw(place) {
    const spec = JSON.parse(place.querySelector("script").textContent);
    const target = place.querySelector(".drawing");
    const made = await vegaEmbed(target, filled(spec), {
      actions: false, renderer: "svg", config: config(place.clientWidth), tooltip: { theme: "custom" },
    });
    drawn.push(made);
    place.dataset.drawn = "yes";
  }

  async function drawAll() {
    while (drawn.length) drawn.pop().finalize();
    for (const place of document.querySelectorAll(".chart")) await draw(place);
    root.dataset.charts = dark.matches ? "dark" : "light";
  }

  // One after another: a change of scheme while charts are drawn waits for its turn.
  let turn = drawAll();
  dark.addEventListener("change", () => { turn = turn.then(drawAll); });
})();
