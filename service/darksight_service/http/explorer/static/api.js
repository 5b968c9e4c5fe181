// Requests to the explorer's API; every failure is an ApiError with a message for the user.

let csrf = "";

export class ApiError extends Error {
  constructor(message, { status = 0, code = "", field = "" } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.field = field;
  }
}

/** The session's CSRF token, sent with every POST. */
export function setCsrf(token) {
  csrf = token;
}

async function request(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The explorer does not respond; it may be restarting. Try again.");
  }
  if (response.ok) return response;
  let found = {};
  try {
    found = await response.json();
  } catch {
    found = { detail: `The explorer responded with status ${response.status}.` };
  }
  throw new ApiError(found.detail, { status: response.status, code: found.code, field: found.field });
}

/** `path` with parameters; empty, null and undefined ones are omitted. */
export function address(path, params = {}) {
  const given = Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const query = new URLSearchParams(given).toString();
  return query ? `${path}?${query}` : path;
}

export async function getJson(path, params = {}, signal = undefined) {
  return (await request(address(path, params), { signal })).json();
}

/** Send JSON without a CSRF token, for the login. */
export async function send(path, body, headers = {}, method = "POST") {
  const response = await request(path, {
    method,
    headers: { "content-type": "application/json", ...headers },
    body: method === "DELETE" ? undefined : JSON.stringify(body),
  });
  return response.json();
}

export function postJson(path, body = {}, method = "POST") {
  return send(path, body, { "x-csrf-token": csrf }, method);
}

const ARRAYS = {
  float32: Float32Array,
  float64: Float64Array,
  int8: Int8Array,
  uint8: Uint8Array,
  int16: Int16Array,
  uint16: Uint16Array,
  int32: Int32Array,
  uint32: Uint32Array,
};

/** Typed arrays by name, and `meta`; see columns.py. */
export async function getColumns(path, params = {}, signal = undefined) {
  const buffer = await (await request(address(path, params), { signal })).arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const columns = { meta: header.meta };
  for (const [name, { type, offset, length: size }] of Object.entries(header.columns)) {
    columns[name] = new ARRAYS[type](buffer, 4 + length + offset, size);
  }
  return columns;
}
