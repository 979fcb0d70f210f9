"""Pages in a browser: what it works out itself, that it asks nobody, and that all can use it."""

import importlib.util
import itertools
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from reporting import pages

from posterity import Beta, Ledger, federate, report
from posterity.federation import Gossip
from posterity.graphs import ring
from posterity.models import BetaBernoulli
from posterity.receipt import Receipt
from posterity.reporting.markup import shown
from posterity.summary import summarise

pytestmark = pytest.mark.browser
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
NAMELESS = """() => [...document.querySelectorAll(
    "input, button, a, summary, svg[role], g[role], [tabindex], table, section, nav")]
  .filter((node) => !(node.getAttribute("aria-label") || node.textContent.trim()
    || node.closest("label")?.textContent.trim()))
  .map((node) => node.outerHTML.slice(0, 120))"""


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
        tab.set_default_timeout(200_000)  # of a machine that is busy
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
            ends = f"{shown(row.mean)}, from {shown(row.low)} to {shown(row.high)}"
            assert line.get_attribute("data-tip") == f"without {', '.join(gone)}: {ends}"
            text = f"{shown(row.mean, 3)} ({shown(row.low, 3)} to {shown(row.high, 3)})"
            assert line.locator("td.value").text_content() == text
    before = tab.locator("tr.fused td.value").all_text_contents()
    tab.get_by_role("button", name="All sites again").click()
    after = tab.locator("tr.fused td.value").all_text_contents()
    whole = summarise(ledger, 0.9).rows
    assert after != before and after[0].startswith(shown(whole[0].mean, 3))


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
        assert shown(row.mean, 3) in line.locator("td.value").text_content()


def test_what_the_others_do_not_carry_is_told(view):
    from posterity import Gaussian

    prior = Gaussian.from_standard([0.0], [[1.0]]).named(["age"])
    ledger = Ledger(prior).extend({"a": Gaussian([1.0], [[9.0]]), "b": Gaussian([0.0], [[-5.0]])})
    tab = view(report(ledger))
    untick(tab, ledger, ["a"])
    assert "is no distribution" in tab.locator("output").text_content()
    assert tab.locator("tr.fused td.value").text_content() == "–"


def everything(tmp_path):
    """Pages of several kinds."""
    mixture, ledger = pages.mixture(), pages.clinics(5)
    sites = {s: Ledger(mixture.prior).update(s, mixture.factor(s)) for s in mixture.sites}
    from posterity import forget, fuse
    from posterity.federation.state import Visit
    from posterity.reporting.markup import Ids
    from posterity.reporting.sources import Source
    from posterity.reporting.verbs import federation

    done = forget(ledger, "site 001")
    visits = [Visit(n, f"site 00{n % 5}", "updated", change=0.5**n) for n in range(20)]
    walked = federation(Source("", ledger, visits=visits), Ids())
    assert isinstance(done.receipt, Receipt) and walked
    return {
        "ledger": report(ledger),
        "receipt": report(ledger, done.ledger, done.receipt),
        "fusion": report(fuse(sites)),
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_can_read_it(scheme, view, tmp_path):
    for made in everything(tmp_path).values():
        tab = view(made, color_scheme=scheme)
        for details in tab.locator("details").all():
            details.evaluate("node => { node.open = true }")
        assert tab.evaluate(CONTRAST) == []
        assert tab.evaluate(NAMELESS) == []
        assert tab.locator("h1").count() == tab.locator("main").count() == 1


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
    assert tab.locator("#tip").text_content().startswith("all together: ")
    tab.keyboard.press("Escape")
    assert tab.locator("#tip").is_hidden()
    box = tab.locator("input[type=checkbox]").first
    box.focus()
    tab.keyboard.press("Space")
    assert tab.locator("output").text_content().startswith("The posterior without site 000.")


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_it_fits(width, view, tmp_path):
    for made in everything(tmp_path).values():
        tab = view(made, viewport={"width": width, "height": 700})
        assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_a_walk_goes_step_by_step(view):
    sites = {name: np.array([1, 0, 1]) for name in ("north", "<b>", "\U0001f3e5")}
    schedule = Gossip(ring(list(sites)))
    run = federate(sites, BetaBernoulli(), Beta.from_standard(1.0, 1.0), schedule=schedule)
    visits = run.trace
    tab = view(report(run))
    slider, output = tab.locator(".walk input"), tab.locator(".walk output")
    told = lambda n: f"Visit {n + 1} of {len(visits)}: {visits[n].site}, {visits[n].outcome}"
    assert output.text_content().startswith(told(0))
    assert len(visits) > 2 and tab.locator(".walk .here text").text_content() == visits[0].site
    tab.locator(".walk button", has_text="Back").click()
    assert output.text_content().startswith(told(0))
    tab.locator(".walk button", has_text="Next").click()
    assert output.text_content().startswith(told(1))
    assert tab.locator(".walk line.on").count() == int(visits[0].site != visits[1].site)
    slider.focus()
    tab.keyboard.press("End")
    assert output.text_content().startswith(told(len(visits) - 1))
    assert slider.get_attribute("aria-valuetext") == output.text_content()
    assert tab.locator(".walk .here text").text_content() == visits[-1].site


def test_it_prints(view):
    tab = view(report(pages.clinics(4)), color_scheme="dark")
    assert tab.pdf().startswith(b"%PDF")
    tab.emulate_media(media="print")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.locator(".controls").is_hidden()


def test_axe_finds_nothing(view, tmp_path):
    axe = os.environ.get("POSTERITY_AXE")
    if axe is None:
        pytest.skip("POSTERITY_AXE names no axe.min.js (npm pack axe-core)")
    for name, made in everything(tmp_path).items():
        tab = view(made)
        tab.evaluate(Path(axe).read_text())
        found = tab.evaluate("axe.run().then((result) => result.violations.map((v) => v.id))")
        assert found == [], name
