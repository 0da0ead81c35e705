"use strict";
// A table that is wider than the page shows its newest end first.
for (const table of document.querySelectorAll(".scroll:has(> table.heat)")) table.scrollLeft = table.scrollWidth;
