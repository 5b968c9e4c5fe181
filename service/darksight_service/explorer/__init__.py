"""The explorer: DarkSight's map and its other pages in a browser, in a process of its own.

process     the process: a socket, TLS, uvicorn
app         one factory, `make_app(sources)`: pages, static files, endpoints, headers, errors
session     who is asking: login by token, cookie, CSRF
endpoint    what an endpoint is given (`Call`), what it may answer, and `Sources`, where everything comes from
columns     arrays to the browser without a detour through text
pages       the list of pages
map, ...    endpoints of one page each: convert, call, convert

How to add a page `gate`:

1. `static/gate.html`: what stands inside `<main>`, plain HTML. `static/shell.html` is around it: header, navigation,
   pickers of model and version, the place of notices.
2. `static/gate.js`: an ES module, loaded by itself. It begins with `const page = await openPage()` of `shell.js`, which
   gives `page.model`, `page.version`, `page.session`, `page.models`. No build step, no inline script or handler: the
   CSP forbids them.
3. `gate.py`: `endpoints(sources)` gives a list of `Endpoint(method, path, scope, answer)`. `answer(call)` gets a `Call`
   with typed parameters (`call.text("model")`, `call.integer("limit", 100)`, `call.body()`), and returns JSON values or
   `Columns`. It may raise any DarkSightError: the page gets it as an error with status and sentence.
4. One line in `pages.PAGES`, and its endpoints among those of `app.make_app`.

In the browser: `getJson(path, params)`, `postJson(path, body)` and `getColumns(path, params)` of `api.js` raise
`ApiError` with a sentence for people; `page.guard(async () => ...)` shows it. CSRF token and session are their
business: a request that changes something is a POST by `postJson` and nothing else. `showEmpty(element, title, text)`
of `notice.js` says what to do where there is nothing to show, `notify(text, kind)` tells what happened. State that a
link should carry goes through `readState(defaults)` and `writeState(state, defaults)` of `state.js`, so that every view
has a URL. Colours of classes come from `palette.js`, figures are made by `draw(element, traces, layout)` of `plot.js`,
which needs `has_plots` in `PAGES`.
"""

__all__: list[str] = []
