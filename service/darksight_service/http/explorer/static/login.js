// Login: sends the token once and gets a cookie that scripts cannot read.

import { getJson, send } from "./api.js";
import { clearNotices, notify, openControls } from "./notice.js";

function target() {
  const asked = new URLSearchParams(location.search).get("next") || "/";
  // Only a URL of this site. The browser must resolve it: "//elsewhere" and "/\t/elsewhere" lead to other sites.
  const found = URL.canParse(asked, location.origin) ? new URL(asked, location.origin) : null;
  return found && found.origin === location.origin ? found.href : "/";
}

// A link from another site comes without the cookie; this request has it.
getJson("/api/session").then(() => location.replace(target()), () => {});

document.getElementById("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  clearNotices();
  try {
    await send("/api/login", { token: document.getElementById("token").value.trim() });
    location.replace(target());
  } catch (error) {
    notify(error.message, "error");
    document.getElementById("token").select();
  }
});

// The provider sends the browser back to the page that was asked for.
const provider = document.getElementById("provider");
if (provider) {
  const { pathname, search, hash } = new URL(target(), location.origin);
  provider.href = `/oidc/login?next=${encodeURIComponent(pathname + search + hash)}`;
}

openControls();
(provider || document.getElementById("token")).focus();
