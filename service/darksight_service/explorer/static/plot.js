// Figures by plotly.js in the explorer's style; the page needs `has_plots` in pages.py.

import { ApiError } from "./api.js";
import { GRID, INK } from "./palette.js";

const FONT = { family: 'system-ui, -apple-system, "Segoe UI", Roboto, sans-serif', size: 12, color: INK };

const AXIS = { gridcolor: GRID, zerolinecolor: GRID, linecolor: GRID, ticks: "", automargin: true };

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

/** Draw or redraw a figure; `label` describes it for screen readers. */
export async function draw(container, traces, layout = {}, { label = "", config = {} } = {}) {
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
    container.setAttribute("role", "img");
    container.setAttribute("aria-label", label);
  }
  const { react } = await loadPlotly();
  await react(container, traces, whole, { ...CONFIG, ...config });
}
