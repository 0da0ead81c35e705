"use strict";
// Draws each chart of a page in the page's colour scheme, and again when that changes.
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

  async function draw(figure) {
    const spec = JSON.parse(figure.querySelector("script").textContent);
    const target = figure.querySelector(".drawing");
    const made = await vegaEmbed(target, filled(spec), {
      actions: false, renderer: "svg", config: config(figure.clientWidth), tooltip: { theme: "custom" },
    });
    drawn.push(made);
    figure.dataset.drawn = "yes";
  }

  async function drawAll() {
    while (drawn.length) drawn.pop().finalize();
    for (const figure of document.querySelectorAll(".chart")) await draw(figure);
    root.dataset.charts = dark.matches ? "dark" : "light";
  }

  // One after another: a change of scheme while charts are drawn waits until they are done.
  let turn = drawAll();
  dark.addEventListener("change", () => { turn = turn.then(drawAll); });
})();
