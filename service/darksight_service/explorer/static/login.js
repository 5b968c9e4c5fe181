// Logging in: the token goes to the server once, a cookie that scripts cannot read comes back.

import { getJson, send } from "./api.js";
import { clearNotices, notify, openControls } from "./notice.js";

function target() {
  const asked = new URLSearchParams(location.search).get("next") || "/";
  // Somewhere on this site and nothing else. The browser must say where it leads: "//elsewhere" and "/\t/elsewhere" are
  // addresses, too.
  const found = URL.canParse(asked, location.origin) ? new URL(asked, location.origin) : null;
  return found && found.origin === location.origin ? found.href : "/";
}

// A link from elsewhere comes without the cookie; from this page the session may well be found.
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

openControls();
document.getElementById("token").focus();
