"""The explorer: the map and the other pages in a browser, served by a process of its own.

    app         `make_app(sources)`: the ASGI application with its routes
    session     login by token, cookie, CSRF
    oidc        login through an OpenID provider
    pages       the list of pages, rendered by jinja2 from `templates/`
    endpoint    declaration of an API path: input model, scope, function
    operations  the operations of the service that pages call
    inputs      the input models that several endpoints share
    answers     what an endpoint may return, as JSON
    columns     arrays as binary columns
    api/        the endpoints of each page
    analysis/   the numbers that the pages show, without HTTP

How to add a page `gate`:

1. `templates/gate.html` extends `shell.html`, which has header, navigation, pickers and notices.
2. `static/gate.js` is an ES module. It begins with `const page = await openPage()` of `shell.js`, which gives
   `page.model`, `page.version`, `page.session` and `page.models`. There is no build step. The CSP forbids inline
   scripts and handlers.
3. `api/gate.py`: `endpoints(sources)` returns a list of `Endpoint`. Each names a pydantic model for its input: the
   query of a GET, the JSON body of a POST. Its function gets a `Call` with the validated input and returns an `Answer`.
   It may raise any DarkSightError, which becomes a status and a message.
4. Add a line to `pages.PAGES` and the module to `app.make_app`.

In the browser, `getJson(path, params)`, `postJson(path, body)` and `getColumns(path, params)` of `api.js` raise
`ApiError` with a message for the user, and `page.guard(async () => ...)` shows it. They also send session and CSRF
token: a change is a POST by `postJson`. `showEmpty(element, title, text)` of `notice.js` says what to do where there is
nothing to show, and `notify(text, kind)` shows a message. `readState(defaults)` and `writeState(state, defaults)` of
`state.js` keep the state of a page in its URL. `classColour(number)` of `palette.js` gives the colours of
`darksight_core.map.palette`, which the server sends. `draw(element, traces, layout)` of `plot.js` draws a figure;
it needs `has_plots` in `PAGES`.
"""

__all__: list[str] = []
