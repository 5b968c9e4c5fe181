"use strict";
// Figures in view are drawn first, then those near it, and the others in idle time, so that a print has all of them.
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const figures = read("figures");
const rows = read("rows");
const drawn = {};

function unpack(name) {
  const bytes = Uint8Array.from(atob(rows[name].bdata), (c) => c.charCodeAt(0));
  const kinds = { u1: Uint8Array, u2: Uint16Array, i4: Int32Array, f4: Float32Array };
  return new kinds[rows[name].dtype](bytes.buffer);
}
const columns = {};
for (const name of ["predicted", "label", "top", "share", "p_value", "entropy"]) if (rows[name]) columns[name] = unpack(name);

function element(kind, text, className) {
  const made = document.createElement(kind);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function describe(row) {
  const names = rows.class_names, box = document.createDocumentFragment();
  box.append(element("b", rows.ids ? `row ${row}: ${rows.ids[row]}` : `row ${row}`));
  const image = document.querySelector(`img[data-row="${row}"]`);
  if (image) box.append(image.cloneNode());
  box.append(element("div", `predicted ${names[columns.predicted[row]]}`));
  if (columns.label) {
    const wrong = columns.label[row] !== columns.predicted[row];
    box.append(element("div", `true ${names[columns.label[row]]}`, wrong ? "wrong" : ""));
  }
  for (let i = 0; i < rows.ranks; i++) {
    const line = element("div", undefined, "bar"), at = row * rows.ranks + i, share = columns.share[at] / 65535;
    const bar = element("i");
    bar.style.width = `${100 * share}%`;
    line.append(element("span", names[columns.top[at]]), element("span", share.toFixed(3)), bar);
    box.append(line);
  }
  box.append(element("div", `p-value ${columns.p_value[row].toPrecision(3)}, entropy ${columns.entropy[row].toFixed(3)}`));
  return box;
}

function show(event) {
  const row = event.points[0].customdata, panel = document.getElementById("row");
  if (!Number.isInteger(row)) return;
  panel.replaceChildren(describe(row));
  panel.style.display = "block";
}

// As a separate script, so that the page can be read while plotly.js is parsed.
async function loadPlotly() {
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (c) => c.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = element("script");
  script.src = URL.createObjectURL(await new Response(unpacked, { headers: { "content-type": "text/javascript" } }).blob());
  await new Promise((done, failed) => {
    script.onload = done;
    script.onerror = () => failed(new Error("plotly.js could not be loaded"));
    document.head.append(script);
  });
  URL.revokeObjectURL(script.src);
}

function settings(name) {
  const svg = {
    name: "svg", title: "Download as SVG", icon: Plotly.Icons.disk,
    click: (plot) => Plotly.downloadImage(plot, { format: "svg", filename: name, width: plot.offsetWidth, height: plot.offsetHeight }),
  };
  return {
    // Without these plotly offers to upload a figure to its cloud.
    showSendToCloud: false, plotlyServerURL: "",
    responsive: true, displaylogo: false, scrollZoom: false, modeBarButtonsToAdd: [svg],
    toImageButtonOptions: { format: "png", scale: 2, filename: name },
  };
}

const dark = matchMedia("(prefers-color-scheme: dark)");

/** Colours of the page for a figure; printed and exported figures are light. */
function template() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const axis = { gridcolor: colour("grid"), linecolor: colour("line"), zerolinecolor: colour("line") };
  const menu = { bgcolor: colour("panel"), bordercolor: colour("line"), font: { color: colour("ink") } };
  return { layout: {
    paper_bgcolor: colour("paper"), plot_bgcolor: colour("paper"), font: { color: colour("ink") }, xaxis: axis, yaxis: axis,
    updatemenudefaults: menu, hoverlabel: { bgcolor: colour("panel"), bordercolor: colour("line"), font: { color: colour("ink") } },
  } };
}

async function drawNow(container, name) {
  await plotly;
  const layout = { ...figures[name].layout, template: template() };
  const plot = await Plotly.newPlot(container, figures[name].data, layout, settings(name));
  plot.on("plotly_hover", show);
  container.dataset.drawn = "yes";
}

const draw = (plot) => (drawn[plot.dataset.figure] ??= drawNow(plot, plot.dataset.figure));
const plots = [...document.querySelectorAll(".plot")];
const drawAll = () => Promise.all(plots.map(draw));
const inView = (plot) => plot.getBoundingClientRect().top < innerHeight && plot.getBoundingClientRect().bottom > 0;
// Resolves when the next frame is on the screen and pending events are handled.
const answered = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
const idle = () => new Promise((done) => (window.requestIdleCallback ?? setTimeout)(done));

async function openPage() {
  await plotly;
  await Promise.all(plots.filter(inView).map(draw));
  await answered();
  performance.mark("opened");
  document.documentElement.dataset.opened = "yes";
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) draw(entry.target);
  }, { rootMargin: "400px" });
  for (const plot of plots) near.observe(plot);
  for (const plot of plots) {
    await idle();
    await draw(plot);
  }
  performance.mark("drawn");
  document.documentElement.dataset.drawn = "yes";
}

const plotly = loadPlotly();
window.addEventListener("beforeprint", drawAll);
dark.addEventListener("change", () => {
  for (const plot of plots.filter((each) => each.dataset.drawn)) Plotly.relayout(plot, { template: template() });
});
openPage().catch((error) => {
  for (const plot of plots.filter((each) => !each.dataset.drawn)) plot.textContent = `This figure could not be drawn: ${error.message}`;
  throw error;
});

document.getElementById("download").addEventListener("click", () => {
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([document.getElementById("numbers").textContent], { type: "application/json" }));
  link.download = "numbers.json";
  link.click();
  URL.revokeObjectURL(link.href);
});
