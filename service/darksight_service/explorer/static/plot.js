// Figures by plotly.js in the explorer's own style; the page must have `has_plots` in pages.py.

import { ApiError } from "./api.js";
import { GRID, INK } from "./palette.js";

const FONT = { family: 'system-ui, -apple-system, "Segoe UI", Roboto, sans-serif', size: 12, color: INK };

const AXIS = { gridcolor: GRID, zerolinecolor: GRID, linecolor: GRID, ticks: "", automargin: true };

const CONFIG = {
  displaylogo: false, responsive: true, modeBarButtonsToRemove: ["toImage"], scrollZoom: true,
  // plotly offers to upload a figure to its makers unless told not to.
  showSendToCloud: false, plotlyServerURL: "",
};

let plotly = null;

/** plotly.js, once it is here; begun only when a page has asked for its data, because to read it takes most of a second. */
export function loadPlotly() {
  plotly ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "/vendor/plotly.min.js";
    script.addEventListener("load", () => resolve(window.Plotly));
    script.addEventListener("error", () => reject(new ApiError("The explorer does not send what draws figures; load the page again.")));
    document.head.append(script);
  });
  return plotly;
}

/** Draw or redraw a figure; `label` says to those who cannot see it what it shows. */
export async function draw(place, traces, layout = {}, { label = "", config = {} } = {}) {
  const { xaxis = {}, yaxis = {}, ...rest } = layout;
  const whole = {
    font: FONT,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "#FFFFFF",
    margin: { l: 48, r: 16, t: 12, b: 40 },
    hoverlabel: { font: FONT, bgcolor: "#FFFFFF", bordercolor: "#AAB2BD" },
    ...rest,
    xaxis: { ...AXIS, ...xaxis },
    yaxis: { ...AXIS, ...yaxis },
  };
  if (label) {
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", label);
  }
  const { react } = await loadPlotly();
  await react(place, traces, whole, { ...CONFIG, ...config });
}
