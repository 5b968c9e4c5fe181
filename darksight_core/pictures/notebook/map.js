// The map on a canvas: points by class, crosses where the prediction was wrong, stars at class centres, regions, a lasso.

const NEAR = 8;
const LARGEST = 40;

/** A typed array over the bytes of a trait. */
function read(view, Kind) {
  return new Kind(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
}

/** Part of the plane that shows all centres and nearly all points: [left, right, bottom, top]. */
function fitView(points, centres, width, height) {
  const ends = [0, 1].map((axis) => {
    const values = Float32Array.from({ length: points.length / 2 }, (_, i) => points[2 * i + axis]).sort();
    const inner = values.length ? [values[Math.floor(0.002 * values.length)], values[Math.ceil(0.998 * values.length) - 1]] : [0, 1];
    return [Math.min(inner[0], ...centres.map((centre) => centre[axis])), Math.max(inner[1], ...centres.map((centre) => centre[axis]))];
  });
  const scale = 0.92 * Math.min(width / (ends[0][1] - ends[0][0] || 1), height / (ends[1][1] - ends[1][0] || 1));
  return { x: (ends[0][0] + ends[0][1]) / 2, y: (ends[1][0] + ends[1][1]) / 2, scale };
}

function render({ model, el }) {
  const root = document.createElement("div");
  root.className = "darksight-map";
  root.style.cssText = "position:relative;user-select:none;font:12px system-ui,sans-serif";
  const canvas = document.createElement("canvas");
  canvas.style.cssText = `width:100%;height:${model.get("height")}px;display:block;touch-action:none;cursor:grab`;
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "img");
  const note = document.createElement("div");
  note.className = "darksight-note";
  note.setAttribute("role", "status");
  const tip = document.createElement("div");
  tip.className = "darksight-tip";
  tip.style.cssText = "position:absolute;display:none;pointer-events:none;background:#fff;color:#1c2430;border:1px solid #888;" +
    "border-radius:3px;padding:3px 6px;white-space:pre;box-shadow:0 1px 4px #0004;z-index:2";
  root.append(canvas, note, tip);
  el.append(root);

  const pen = canvas.getContext("2d");
  const points = read(model.get("points"), Float32Array);
  const predicted = read(model.get("predicted"), Int32Array);
  const labels = read(model.get("labels"), Int32Array);
  const topClasses = read(model.get("top_classes"), Int32Array);
  const topProbs = read(model.get("top_probs"), Float32Array);
  const [names, colours, centres] = ["class_names", "colours", "centres"].map((name) => model.get(name));
  const count = predicted.length;
  const isWrong = (row) => labels[row] >= 0 && labels[row] !== predicted[row];
  let view = null;
  let drag = null;
  canvas.setAttribute("aria-label", `Map of ${count} predictions of ${names.length} classes`);

  const toScreen = (x, y) => [canvas.clientWidth / 2 + (x - view.x) * view.scale, canvas.clientHeight / 2 - (y - view.y) * view.scale];
  const toMap = (u, v) => [view.x + (u - canvas.clientWidth / 2) / view.scale, view.y - (v - canvas.clientHeight / 2) / view.scale];

  function draw() {
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (!width) return;
    view ??= fitView(points, centres, width, height);
    const ratio = window.devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    pen.scale(ratio, ratio);
    drawPoints();
    drawCentres();
    for (const { name, polygon } of model.get("shapes")) outline(polygon, "#D55E00", name);
    if (drag?.lasso) outline(drag.lasso.map(([u, v]) => toMap(u, v)), "#0B5CAD");
    else if (model.get("lasso").length) outline(model.get("lasso"), "#0B5CAD");
  }

  function drawPoints() {
    const inside = model.get("inside").byteLength ? read(model.get("inside"), Uint8Array) : null;
    const hasSelection = inside !== null && inside.includes(1);
    const size = count > 20_000 ? 2 : count > 3_000 ? 3 : 4;
    // Wrong predictions last, so that they are on top.
    for (const wanted of [false, true]) {
      for (let row = 0; row < count; row += 1) {
        if (isWrong(row) !== wanted) continue;
        const [u, v] = toScreen(points[2 * row], points[2 * row + 1]);
        if (u < -9 || v < -9 || u > canvas.clientWidth + 9 || v > canvas.clientHeight + 9) continue;
        pen.globalAlpha = hasSelection && !inside[row] ? 0.12 : 0.75;
        pen.fillStyle = pen.strokeStyle = colours[predicted[row]];
        if (wanted) cross(u, v);
        else pen.fillRect(u - size / 2, v - size / 2, size, size);
      }
    }
    pen.globalAlpha = 1;
  }

  function cross(u, v) {
    pen.lineWidth = 1.6;
    pen.beginPath();
    pen.moveTo(u - 4, v - 4); pen.lineTo(u + 4, v + 4);
    pen.moveTo(u - 4, v + 4); pen.lineTo(u + 4, v - 4);
    pen.stroke();
  }

  function drawCentres() {
    const ink = getComputedStyle(root).color;
    pen.fillStyle = pen.strokeStyle = ink;
    pen.lineWidth = 1;
    pen.textAlign = "center";
    pen.font = "12px system-ui, sans-serif";
    centres.forEach(([x, y], number) => {
      const [u, v] = toScreen(x, y);
      pen.beginPath();
      for (let i = 0; i < 10; i += 1) {
        const [radius, angle] = [i % 2 ? 3 : 7, (Math.PI * i) / 5];
        pen.lineTo(u + radius * Math.sin(angle), v - radius * Math.cos(angle));
      }
      pen.closePath();
      pen.stroke();
      if (centres.length <= LARGEST && centres.length === names.length) pen.fillText(names[number], u, v - 11);
    });
  }

  function outline(polygon, colour, name = "") {
    if (polygon.length < 2) return;
    pen.strokeStyle = pen.fillStyle = colour;
    pen.lineWidth = 2;
    pen.beginPath();
    for (const [x, y] of polygon) pen.lineTo(...toScreen(x, y));
    pen.closePath();
    pen.stroke();
    pen.globalAlpha = 0.08;
    pen.fill();
    pen.globalAlpha = 1;
    const top = polygon.reduce((best, corner) => (corner[1] > best[1] ? corner : best));
    const [u, v] = toScreen(...top);
    pen.fillText(name, u, v - 5);
  }

  /** The row nearest to a place on the screen, or -1. */
  function nearest(u, v) {
    let [best, least] = [-1, NEAR * NEAR];
    for (let row = 0; row < count; row += 1) {
      const [x, y] = toScreen(points[2 * row], points[2 * row + 1]);
      const distance = (x - u) ** 2 + (y - v) ** 2;
      if (distance < least) [best, least] = [row, distance];
    }
    return best;
  }

  function describe(row) {
    const lines = [`row ${row}: ${names[predicted[row]]}`];
    if (labels[row] >= 0) lines.push(`label: ${names[labels[row]]}`);
    const shown = topClasses.length / count;
    for (let i = 0; i < shown; i += 1) {
      lines.push(`${(100 * topProbs[row * shown + i]).toFixed(1).padStart(5)} %  ${names[topClasses[row * shown + i]]}`);
    }
    return lines.join("\n");
  }

  function showTip(u, v) {
    const row = nearest(u, v);
    tip.style.display = row < 0 ? "none" : "block";
    if (row < 0) return;
    tip.textContent = describe(row);
    tip.style.left = `${Math.min(u + 12, canvas.clientWidth - tip.offsetWidth - 4)}px`;
    tip.style.top = `${v + 12}px`;
  }

  function tell() {
    const inside = model.get("inside");
    const rows = inside.byteLength ? read(inside, Uint8Array).reduce((sum, value) => sum + value, 0) : 0;
    note.textContent = rows ? `${rows} of ${count} rows selected` : "Hover: a row. Drag: move. Wheel: zoom. Shift and drag: lasso. Double-click: everything.";
  }

  // A region has at most 4,096 corners; fewer are also quicker to draw.
  function addCorner([u, v]) {
    const [before, after] = drag.lasso.at(-1);
    if (Math.hypot(u - before, v - after) >= 3 && drag.lasso.length < 4_000) drag.lasso.push([u, v]);
  }

  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    const place = [event.offsetX, event.offsetY];
    drag = { last: place, lasso: event.shiftKey ? [place] : null };
    tip.style.display = "none";
  });
  canvas.addEventListener("pointermove", (event) => {
    const place = [event.offsetX, event.offsetY];
    if (!drag) return showTip(...place);
    if (drag.lasso) addCorner(place);
    else view = { ...view, x: view.x - (place[0] - drag.last[0]) / view.scale, y: view.y + (place[1] - drag.last[1]) / view.scale };
    drag.last = place;
    draw();
  });
  canvas.addEventListener("pointerup", () => {
    const drawn = drag?.lasso;
    drag = null;
    if (!drawn) return;
    model.set("lasso", drawn.map(([u, v]) => toMap(u, v)));
    model.save_changes();
  });
  canvas.addEventListener("pointerleave", () => { tip.style.display = "none"; });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const [x, y] = toMap(event.offsetX, event.offsetY);
    const factor = Math.exp(-0.0015 * event.deltaY);
    view = { x: x + (view.x - x) / factor, y: y + (view.y - y) / factor, scale: view.scale * factor };
    draw();
  }, { passive: false });
  canvas.addEventListener("dblclick", () => { view = null; draw(); });
  model.on("change:inside", () => { tell(); draw(); });
  model.on("change:shapes", draw);
  const watcher = new ResizeObserver(draw);
  watcher.observe(canvas);
  tell();
  return () => watcher.disconnect();
}

export default { render };
