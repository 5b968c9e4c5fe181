// Figures by plotly.js in the explorer's style; the page needs `has_plots` in pages.py.

import { ApiError } from "./api.js";
import { SCHEME, pageColour } from "./palette.js";

const FAMILY = 'system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';

const CONFIG = {
  displaylogo: false, responsive: true, modeBarButtonsToRemove: ["toImage"], scrollZoom: true,
  // Without these plotly offers to upload a figure to its cloud.
  showSendToCloud: false, plotlyServerURL: "",
};

let plotly = null;

/** plotly.js, loaded once and after the page has requested its data, because parsing takes most of a second. */
export function loadPlotly() {
  plotly ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "/vendor/plotly.min.js";
    script.addEventListener("load", () => resolve(window.Plotly));
    script.addEventListener("error", () => reject(new ApiError("plotly.js could not be loaded; reload the page.")));
    document.head.append(script);
  });
  return plotly;
}

/** Fonts and colours of all figures, in light or dark mode. */
function template() {
  const grid = pageColour("grid");
  const font = { family: FAMILY, size: 12, color: pageColour("ink") };
  const axis = { gridcolor: grid, zerolinecolor: grid, linecolor: grid, ticks: "", automargin: true };
  return { layout: {
    font, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: pageColour("paper"), xaxis: axis, yaxis: axis,
    hoverlabel: { font, bgcolor: pageColour("paper"), bordercolor: pageColour("soft") },
    annotationdefaults: { bgcolor: pageColour("veil"), font: { color: pageColour("ink") } },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: pageColour("soft"), activecolor: pageColour("accent") },
  } };
}

const drawn = new Set();

/** Draw or redraw a figure; `label` describes it for screen readers. */
export async function draw(container, traces, layout = {}, { label = "", config = {} } = {}) {
  if (label) {
    container.setAttribute("role", "img");
    container.setAttribute("aria-label", label);
  }
  const { react } = await loadPlotly();
  const whole = { template: template(), margin: { l: 48, r: 16, t: 12, b: 40 }, ...layout };
  await react(container, traces, whole, { ...CONFIG, ...config });
  drawn.add(container);
}

SCHEME.addEventListener("change", () => {
  for (const container of drawn) window.Plotly.relayout(container, { template: template() });
});
