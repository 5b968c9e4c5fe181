import { getJson } from "./api.js";
import { draw } from "./plot.js";
import { openPage } from "./shell.js";

const page = await openPage();
const map = await getJson("/api/map", { model: page.model, version: page.version });
await draw(document.getElementById("plot"), [
  { type: "scattergl", mode: "markers", x: map.means.map((mean) => mean[0]), y: map.means.map((mean) => mean[1]) },
]);
