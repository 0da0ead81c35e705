"use strict";
// A table that is wider than its place shows its newest end first.
for (const place of document.querySelectorAll(".scroll:has(> table.heat)")) place.scrollLeft = place.scrollWidth;
