"""Pages in a browser: what it works out itself, that it asks nobody, and that all can use it."""

import importlib.resources
import importlib.util
import io
import itertools
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from reporting import pages

from posterity import Ledger, report
from posterity.reporting.markup import Scale, shown
from posterity.reporting.summary import summarise

pytestmark = pytest.mark.browser
PICTURES = Path(__file__).parent / "pictures"
"""What pictures looked like when they were last looked at; ``POSTERITY_PICTURES=1`` takes them."""
FLAT = """* { font-size: 0 !important; transition: none !important; }
  input, button { visibility: hidden; } .scroll { overflow: hidden; }"""
"""A style without letters: fonts differ from one machine to the next."""
STYLED = """(text) => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(text);
  document.adoptedStyleSheets.push(sheet);
}"""
SHAPES = """(root) => {
  const box = root.getBoundingClientRect(), near = (x) => Math.round(10 * x) / 10;
  return [...root.querySelectorAll("line, rect, circle, polyline, path, td[class]")]
    .filter((node) => node.checkVisibility({ visibilityProperty: true }))
    .map((node) => {
      const own = node.getBoundingClientRect(), kind = node.getAttribute("class") || "";
      const place = [own.x - box.x, own.y - box.y, own.width, own.height].map(near);
      return [`${node.localName} ${kind}`.trim(), ...place];
    });
}"""
WRONG = """line, polyline, path, rect, circle, td
  { fill: lime !important; stroke: lime !important; background: lime !important; }"""
FAR, UNLIKE = 1.5, 0.1
"""Pixels that a shape may be away, and the share of its ink that may be of another colour."""
BROWSER = os.environ.get("POSTERITY_BROWSER") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
CONTRAST = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = parse(getComputedStyle(node).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const bad = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    const out = node.closest("script, .hide, :disabled, .skip");
    if (!own || out || !node.checkVisibility()) continue;
    const style = getComputedStyle(node);
    const ink = node.namespaceURI.endsWith("svg") ? style.fill : style.color;
    const [a, b] = [parse(ink), behind(node)].map(light).sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) bad.push(node.outerHTML.slice(0, 120));
  }
  return bad;
}"""


@pytest.fixture(scope="module")
def browser():
    if importlib.util.find_spec("playwright") is None or BROWSER is None:
        pytest.skip("needs Playwright's package and Chromium (POSTERITY_BROWSER)")
    from playwright.sync_api import Error, sync_playwright

    with sync_playwright() as playwright:
        try:
            started = playwright.chromium.launch(executable_path=BROWSER)
        except Error as error:
            pytest.skip(f"{BROWSER} does not start: {error.message[:200]}")
        yield started


@pytest.fixture
def view(browser, tmp_path):
    """A function that opens a page, of which nothing may be asked or complained about."""
    requests, complaints = [], []

    def opened(made, **options):
        made.save(tmp_path / "report.html")
        tab = browser.new_context(**options).new_page()
        tab.set_default_timeout(60_000)  # of a machine that is busy
        tab.on("request", lambda request: requests.append(request.url))
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.goto((tmp_path / "report.html").as_uri())
        return tab

    yield opened
    assert complaints == []
    assert all(url.endswith("/report.html") for url in requests)


def untick(tab, ledger, sites):
    """Tick off these sites, and on all others."""
    for place, site in enumerate(ledger.sites):
        tab.locator("input[type=checkbox]").nth(place).set_checked(site not in sites)


LEDGERS = {
    "gaussian": lambda: pages.clinics(4),
    "diagonal": lambda: pages.clinics(3, full=False),
    "conjugate": pages.conjugate,
}


@pytest.mark.parametrize("kind", LEDGERS)
def test_the_page_forgets_as_forget_does(kind, view):
    ledger = LEDGERS[kind]()
    tab = view(report(ledger, level=0.9))
    every = [itertools.combinations(ledger.sites, n) for n in range(1, len(ledger.sites) + 1)]
    for gone in itertools.chain(*every):
        untick(tab, ledger, gone)
        left = summarise(ledger.forget(*gone), 0.9).rows
        for line in tab.locator("tr.fused").all():
            row = left[int(line.get_attribute("data-row"))]
            exact = int(line.get_attribute("data-digits"))
            mean, low, high = (shown(value, exact) for value in (row.mean, row.low, row.high))
            ends = f"{mean}, from {low} to {high}"
            assert line.get_attribute("data-tip") == f"without {', '.join(gone)}: {ends}"
            unit, decimals = (line.get_attribute(f"data-{a}") for a in ("unit", "decimals"))
            form = Scale(round(np.log10(float(unit))), int(decimals)).text
            text = f"{form(row.mean)} ({form(row.low)} to {form(row.high)})"
            assert line.locator("td.value").text_content() == text
    before = tab.locator("tr.fused td.value").all_text_contents()
    tab.get_by_role("button", name="Select all sites").click()
    after = tab.locator("tr.fused td.value").all_text_contents()
    whole = summarise(ledger, 0.9).rows
    assert after != before and float(after[0].split()[0].replace("−", "-")) == pytest.approx(
        whole[0].mean, abs=0.1 * (whole[0].high - whole[0].low)
    )


def test_one_at_a_time_where_the_page_holds_the_numbers(view):
    ledger = pages.mixture()
    tab = view(report(ledger))
    boxes = tab.locator("input[type=checkbox]")
    boxes.nth(0).uncheck()
    boxes.nth(2).uncheck()
    assert [box.is_checked() for box in boxes.all()] == [True, True, False]
    left = summarise(ledger.forget("c"), 0.95).rows
    for line in tab.locator("tr.fused").all():
        row = left[int(line.get_attribute("data-row"))]
        assert line.get_attribute("data-tip").startswith(f"without c: {shown(row.mean)}, from ")


def test_what_the_others_do_not_carry_is_told(view):
    from posterity import Gaussian

    prior = Gaussian.from_standard([0.0], [[1.0]]).named(["age"])
    ledger = Ledger(prior).extend({"a": Gaussian([1.0], [[9.0]]), "b": Gaussian([0.0], [[-5.0]])})
    tab = view(report(ledger))
    untick(tab, ledger, ["a"])
    assert "There is no posterior without" in tab.locator("output").text_content()
    assert tab.locator("tr.fused td.value").text_content() == "–"


@pytest.fixture(scope="module")
def every_page(tmp_path_factory):
    return pages.everything(tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="module")
def axe():
    """The source of axe-core, which the package for Playwright brings along."""
    pytest.importorskip("axe_playwright_python", reason="needs axe-playwright-python")
    return importlib.resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()


def test_all_can_read_every_page(view, every_page, axe):
    """On a telephone, a tablet and a desk, by day and by night, and by what axe-core asks for."""
    for name, made in every_page.items():
        assert len(made.html) < 1_000_000
        tab = view(made)
        for details in tab.locator("details").all():
            details.evaluate("node => { node.open = true }")
        assert tab.locator("h1").count() == tab.locator("main").count() == 1
        for width, scheme in ((360, "light"), (768, "dark"), (1280, "light")):
            tab.set_viewport_size({"width": width, "height": 700})
            tab.emulate_media(color_scheme=scheme)
            assert tab.evaluate("document.documentElement.scrollWidth") <= width, name
            if width > 360:
                assert tab.evaluate(CONTRAST) == [], name
        tab.evaluate(axe)
        found = tab.evaluate("axe.run().then((result) => result.violations.map((v) => v.id))")
        assert found == [], name
        tab.close()


def test_the_keyboard_reaches_all(view):
    ledger = pages.clinics(4)
    tab = view(report(ledger))
    wanted = tab.evaluate(
        "[...document.querySelectorAll('a, input, summary, [tabindex=\"0\"]')]"
        ".filter((node) => node.checkVisibility()).length"
    )
    met = set()
    for _ in range(2 * wanted):
        tab.keyboard.press("Tab")
        met.add(tab.evaluate("[...document.querySelectorAll('*')].indexOf(document.activeElement)"))
    assert len(met - {0, tab.evaluate("[...document.querySelectorAll('*')].indexOf(document.body)")
                      }) >= wanted  # fmt: skip
    tab.locator(".panel tr[data-tip]").first.focus()
    first = tab.locator("#tip").text_content()
    assert first.startswith("site 000 alone: ") and "nats" in first
    tab.keyboard.press("ArrowDown")
    assert tab.locator("#tip").text_content().startswith("site 001 alone: ")
    tab.keyboard.press("End")
    assert tab.locator("#tip").text_content().startswith("all sites: ")
    tab.keyboard.press("Escape")
    assert tab.locator("#tip").is_hidden()
    box = tab.locator("input[type=checkbox]").first
    box.focus()
    tab.keyboard.press("Space")
    assert tab.locator("output").text_content().startswith("The posterior without site 000.")


def test_it_prints(view):
    tab = view(report(pages.clinics(4)), color_scheme="dark")
    assert tab.pdf().startswith(b"%PDF")
    tab.emulate_media(media="print")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.locator(".controls").is_hidden()


def unticked(tab):
    tab.locator("input[type=checkbox]").nth(1).uncheck()


SCENES = {
    "forest": ("ledger", ".panels", None),
    "forest-units": ("units", ".panels", None),
    "forest-unticked": ("ledger", ".panels", unticked),
    "influence": ("ledger", ".bars", None),
    "matches": ("fusion", "section:has(h2:text('Matching')) .cells", None),
    "pursuit": ("pursuit", ".chart", None),
    "calibration": ("regression", ".chart", None),
    "calibration-student": ("student", ".chart", None),
    "survival": ("survival", ".chart", None),
}


def difference(picture, name):
    """The pixels of another colour than in the picture that was taken, as a share of its ink."""
    from matplotlib.image import imread

    one, other = imread(io.BytesIO(picture)), imread(PICTURES / f"{name}.png")
    if np.abs(np.subtract(one.shape, other.shape)).max() > 2:
        return 1.0
    high, wide = np.minimum(one.shape[:2], other.shape[:2])
    apart = np.abs(one[:high, :wide, :3] - other[:high, :wide, :3]).max(-1)
    ink = np.abs(other[..., :3] - other[0, 0, :3]).max(-1) > 0.02
    return float((apart > 0.25).sum() / ink.sum())


@pytest.mark.parametrize("name", SCENES)
def test_pictures_look_as_they_did(name, view, every_page):
    page, selector, action = SCENES[name]
    scheme = "dark" if name == "forest-unticked" else "light"
    tab = view(every_page[page], viewport={"width": 1100, "height": 900}, color_scheme=scheme)
    if action is not None:
        action(tab)
    tab.evaluate("document.activeElement.blur()")
    tab.mouse.move(0, 0)
    tab.evaluate(STYLED, FLAT)
    drawn = tab.locator(selector).first
    shapes, path = drawn.evaluate(SHAPES), PICTURES / f"{name}.json"
    if os.environ.get("POSTERITY_PICTURES"):
        path.write_text("[\n" + ",\n".join(map(json.dumps, shapes)) + "\n]\n")
        (PICTURES / f"{name}.png").write_bytes(drawn.screenshot(caret="initial"))
    known = json.loads(path.read_text())
    assert [shape[0] for shape in shapes] == [shape[0] for shape in known]
    np.testing.assert_allclose(*([s[1:] for s in own] for own in (shapes, known)), atol=FAR)
    assert difference(drawn.screenshot(caret="initial"), name) < UNLIKE
    tab.evaluate(STYLED, WRONG)
    assert difference(drawn.screenshot(caret="initial"), name) > UNLIKE  # as a wrong colour is
