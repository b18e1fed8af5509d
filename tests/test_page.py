"""The page in a browser: from a table to the best candidate, several people at once, and what gets lost on the way."""

import json
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import campaigns
import pytest
import scenes
import services

import dkaf

pytest.importorskip("playwright", reason="the page is tested by Playwright: pip install dkaf[dev]")
pytest.importorskip("fastapi", reason="the page is served by FastAPI: pip install dkaf[serve]")
uvicorn = pytest.importorskip("uvicorn", reason="the page is served by uvicorn: pip install dkaf[serve]")

from playwright.sync_api import Browser, Page, Route, expect, sync_playwright  # noqa: E402 - where it is there

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: apt-get install chromium")
PHONE = {"width": 390, "height": 700}
TINY = {"pretrain_updates": 10, "updates": 1, "scale_updates": 1, "queries": 3}  # a training for a few seconds
SECONDS = 30_000  # of patience, in ms: other tests run at the same time


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Service:
    """A folder that is served, in this process: to start another takes seconds."""

    def __init__(self, folder: Path, scene: Any = None) -> None:
        from dkaf.service.app import create_app

        app = create_app(folder, scene=scene)
        bound = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{bound.getsockname()[1]}/"
        config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [bound]})
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("service") / "data")
    yield service
    service.stop()


def opened(browser: Browser, address: str, problems: list[str], **options: Any) -> Page:
    """A page of a browser of its own; what its console calls an error is a problem, lost connections aside."""
    page = browser.new_context(**options).new_page()
    page.set_default_timeout(SECONDS)
    expect.set_options(timeout=SECONDS)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda said: problems.append(said.text) if "Content Security" in said.text else None)
    page.goto(address)
    return page


def begin(page: Page, folder: Path, name: str, budget: int) -> dict[str, float]:
    """A campaign from a CSV file; what each candidate would give."""
    truth = fill_in(page, folder, name, budget)
    page.get_by_role("button", name="Begin the campaign").click()
    expect(page.get_by_role("heading", level=1, name=name)).to_be_visible()
    return truth


def fill_in(page: Page, folder: Path, name: str, budget: int) -> dict[str, float]:
    """The form for one."""
    truth = campaigns.pool(folder / "pool.csv")
    page.get_by_role("link", name="Begin a campaign").click()
    page.get_by_label("Drop a CSV file here").set_input_files(folder / "pool.csv")
    expect(page.get_by_text("60 candidates, 4 columns")).to_be_visible()
    page.get_by_label("Name of the campaign").fill(name)
    page.get_by_label("Column that names candidates").select_option("loaf")
    page.locator("[name=response]").select_option("not in the table: a name")
    page.get_by_label("Name of what is measured").fill("rise")
    page.get_by_label("Budget").fill(str(budget))
    return truth


def tell_first(page: Page, truth: dict[str, float]) -> str:
    """Tell what the first card's candidate gives, by the keyboard; which it was."""
    card = page.locator(".candidate").first
    candidate = card.locator("h3").inner_text()
    card.get_by_role("textbox").fill(str(truth[candidate]))
    card.get_by_role("textbox").press("Enter")
    expect(page.locator(".history tbody tr").first).to_contain_text(candidate)
    return candidate


def prepared(service: Service, folder: Path, name: str, token: str | None = None, **options: Any) -> dkaf.Client:
    """A campaign on bread, begun by a client: faster than by the page."""
    campaigns.pool(folder / "pool.csv")
    client = dkaf.Client(service.address, token)
    client.create(name, client.upload(folder / "pool.csv")["upload"], id="loaf", response="rise", **options)
    return client


def sign_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()


def tell_other(page: Page, candidate: str, value: str) -> None:
    """Tell of a candidate that nobody asked for."""
    if not page.locator(".other[open]").count():
        page.get_by_text("Tell of another candidate").click()
    page.locator(".other [name=id]").fill(candidate)
    page.locator(".other [name=value]").fill(value)
    page.locator(".other button").click()


def told(client: dkaf.Client, campaign: str) -> list[tuple[str, float, str]]:
    return [(each["id"], each["value"], each["who"]) for each in client.status(campaign)["history"]]


def in_sight(page: Page, selector: str) -> bool:
    box = page.locator(selector).bounding_box()
    assert box is not None
    assert page.viewport_size is not None
    return box["y"] >= 0 and box["y"] + box["height"] <= page.viewport_size["height"]


def too_small(page: Page) -> list[str]:
    """What is hard to hit with a finger."""
    found: list[str] = page.evaluate(
        "[...document.querySelectorAll('main button, main a, main input, main select, main summary')]"
        ".filter((node) => node.getClientRects().length && node.getBoundingClientRect().height < 24)"
        ".map((node) => node.outerHTML)"
    )
    return found


def until_all_is_sent(page: Page) -> None:
    while page.evaluate("sessionStorage.getItem('dkaf.outbox')") != "{}":
        page.wait_for_timeout(50)


def test_from_a_csv_file_to_a_candidate_among_the_best(service: Service, browser: Browser, tmp_path: Path) -> None:
    problems: list[str] = []
    page = opened(browser, service.address, problems)
    truth = begin(page, tmp_path, "bread", 9)
    for _ in range(3):
        page.get_by_label("or for").fill("3")
        page.get_by_role("button", name="Ask", exact=True).click()
        expect(page.locator(".candidate")).to_have_count(3)
        for _ in range(3):
            tell_first(page, truth)
    expect(page.get_by_text("The budget is used up")).to_be_visible()
    best = page.locator(".facts .id").inner_text()
    assert truth[best] in sorted(truth.values())[-6:]
    expect(page.locator(".chart.progress circle")).to_have_count(9)
    expect(page.locator(".chart.map .point.measured")).to_have_count(9)
    page.locator(".chart.map .point[tabindex='0']").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("The nearest measured candidates")
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Undo the last").click()
    expect(page.locator(".history tbody tr")).to_have_count(8)
    with page.expect_download() as download:
        page.get_by_role("link", name="Export as CSV").click()
    assert "loaf" in download.value.path().read_text()
    assert not problems


def test_what_one_tells_the_other_sees_and_loses_nothing_typed(
    service: Service, browser: Browser, tmp_path: Path
) -> None:
    problems: list[str] = []
    one = opened(browser, service.address, problems)
    truth = begin(one, tmp_path, "shared", 10)
    two = opened(browser, f"{service.address}#/campaign/shared", problems, viewport={"width": 360, "height": 740})
    one.get_by_label("or for").fill("2")
    one.get_by_role("button", name="Ask", exact=True).click()
    expect(two.locator(".candidate")).to_have_count(2)
    typed = two.locator(".candidate").nth(1).get_by_role("textbox")
    typed.fill("7.2")
    told = tell_first(one, truth)
    expect(two.locator(".history tbody tr")).to_contain_text(told)
    expect(two.locator(".candidate")).to_have_count(1)
    left = two.locator(".candidate").get_by_role("textbox")
    expect(left).to_have_value("7.2")
    expect(left).to_be_focused()
    assert two.evaluate("document.documentElement.scrollWidth <= innerWidth")
    two.reload()
    expect(two.locator(".candidate").get_by_role("textbox")).to_have_value("7.2")
    assert not problems


def test_what_a_killed_service_did_not_answer_is_sent_again_once(browser: Browser, tmp_path: Path) -> None:
    problems: list[str] = []
    service = services.Service(tmp_path / "data")
    try:
        page = opened(browser, service.address, problems)
        truth = begin(page, tmp_path, "killed", 10)
        page.get_by_role("button", name="Ask for 1").click()
        expect(page.locator(".candidate")).to_have_count(1)
        candidate = page.locator(".candidate h3").inner_text()
        # The service does it, and its answer is lost.
        page.route("**/tell", lambda route: (route.fetch(), route.abort()))
        page.locator(".candidate").get_by_role("textbox").fill(str(truth[candidate]))
        page.get_by_role("button", name="Tell the result of").click()
        expect(page.get_by_role("alert").first).to_contain_text("it counts once")
        service.kill()
        page.unroute("**/tell")
        service.start(service.port)
        page.reload()
        expect(page.locator(".history tbody tr")).to_contain_text([candidate])
        until_all_is_sent(page)
        page.reload()
        expect(page.locator(".history tbody tr")).to_have_count(1)
        assert not problems
    finally:
        service.kill()


def test_a_refusal_is_shown_and_the_form_is_kept(service: Service, browser: Browser, tmp_path: Path) -> None:
    problems: list[str] = []
    page = opened(browser, service.address, problems)
    begin(page, tmp_path, "twice", 5)
    page.goto(f"{service.address}#/new")
    page.get_by_label("Drop a CSV file here").set_input_files(tmp_path / "pool.csv")
    page.get_by_label("Name of the campaign").fill("twice")
    page.locator("[name=response]").select_option("heat")
    page.get_by_label("Budget").fill("7")
    page.get_by_role("button", name="Begin the campaign").click()
    expect(page.locator("#problem")).to_contain_text("name another")
    expect(page.get_by_label("Budget")).to_have_value("7")
    page.reload()
    expect(page.get_by_label("Budget")).to_have_value("7")
    assert not problems


def test_a_campaign_whose_beginning_got_no_answer_is_begun_once(
    service: Service, browser: Browser, tmp_path: Path
) -> None:
    page = opened(browser, service.address, [])
    fill_in(page, tmp_path, "lost", 10)
    page.route("**/api/campaigns", lambda route: (route.fetch(), route.abort()))
    page.get_by_role("button", name="Begin the campaign").click()
    expect(page.get_by_role("alert").filter(has_text="does not answer").first).to_be_visible()
    page.unroute("**/api/campaigns")
    page.get_by_role("button", name="Begin the campaign").click()
    expect(page.get_by_role("heading", level=1, name="lost")).to_be_visible()


def test_what_is_kept_goes_out_in_the_name_of_who_did_it_and_of_nobody_else(browser: Browser, tmp_path: Path) -> None:
    from dkaf.service.tokens import Tokens

    problems: list[str] = []
    (tmp_path / "data").mkdir()
    anna, bob = (Tokens(tmp_path / "data").create(name, "operator") for name in ("anna", "bob"))
    service = Service(tmp_path / "data")
    try:
        client = prepared(service, tmp_path, "whose", anna)
        page = opened(browser, f"{service.address}#/campaign/whose", problems)
        sign_in(page, anna)
        page.route("**/tell", lambda route: (route.fetch(), route.abort())[1])  # it is done, and the answer lost
        tell_other(page, "l7", "7.5")
        expect(page.locator("#problem")).to_contain_text("it counts once")
        page.unroute("**/tell")
        page.route("**/tell", lambda route: route.abort())
        tell_other(page, "l8", "8.5")
        expect(page.locator("#problem")).to_contain_text("it counts once")
        page.get_by_role("button", name="Sign out").click()
        leaving = page.get_by_role("dialog", name="Not everything is sent")
        expect(leaving).to_contain_text("l8 = 8.5")
        leaving.get_by_role("button", name="Stay").click()
        page.get_by_role("button", name="Sign out").click()
        leaving.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Token")).to_be_visible()
        page.unroute("**/tell")
        sign_in(page, bob)
        page.goto(f"{service.address}#/campaign/whose")
        expect(page.locator("#kept")).to_contain_text(["Kept from anna: l7 = 7.5"])
        tell_other(page, "l8", "3")  # a slot of his own
        expect(page.locator(".history tbody tr")).to_have_count(2)
        assert told(client, "whose") == [("l7", 7.5, "anna"), ("l8", 3.0, "bob")]
        page.get_by_role("button", name="Discard l8 = 8.5").click()
        expect(page.locator("#kept")).not_to_contain_text("l8")
        page.get_by_role("button", name="Sign out").click()  # nothing of his is kept, so nothing is asked
        expect(page.get_by_label("Token")).to_be_visible()
        sign_in(page, anna)
        page.goto(f"{service.address}#/campaign/whose")
        until_all_is_sent(page)
        expect(page.locator("#kept")).to_be_hidden()
        assert told(client, "whose") == [("l7", 7.5, "anna"), ("l8", 3.0, "bob")]
        assert not problems
    finally:
        service.stop()


def test_what_waits_is_not_replaced_nor_lost_and_stays_with_its_campaign(
    service: Service, browser: Browser, tmp_path: Path
) -> None:
    problems: list[str] = []
    client = prepared(service, tmp_path, "wait2")
    prepared(service, tmp_path, "wait")
    page = opened(browser, f"{service.address}#/campaign/wait2", problems)
    page.route("**/tell", lambda route: route.abort())
    tell_other(page, "l1", "1")
    expect(page.locator("#problem")).to_contain_text("it counts once")
    tell_other(page, "l1", "2")
    expect(page.locator(".other .wrong")).to_contain_text("l1 = 1 is still being sent")
    expect(page.locator(".other [name=value]")).to_have_value("2")
    # Another campaign whose name begins alike, and an answer that may be another one later.
    trouble = {"status": 500, "content_type": "application/json", "body": '{"detail": "no room"}'}
    page.unroute("**/tell")
    page.route("**/tell", lambda route: route.fulfill(**trouble))
    page.goto(f"{service.address}#/campaign/wait")
    expect(page.get_by_role("heading", name="wait", exact=True)).to_be_visible()
    expect(page.get_by_role("heading", name="History")).to_be_visible()
    assert page.locator("#problem").is_hidden()
    page.goto(f"{service.address}#/campaign/wait2")
    expect(page.locator("#kept")).to_contain_text("Kept: l1 = 1. It is tried again (no room).")
    trouble["status"] = 429
    page.reload()
    expect(page.locator("#problem")).to_contain_text("it counts once")
    page.unroute("**/tell")
    expect(page.locator(".history tbody tr")).to_have_count(1)
    expect(page.locator("#kept")).to_be_hidden()
    assert told(client, "wait2") == [("l1", 1.0, "local")]
    assert told(client, "wait") == []
    assert not problems


def test_a_refusal_is_in_sight_on_a_phone_and_at_the_card_that_it_is_about(
    service: Service, browser: Browser, tmp_path: Path
) -> None:
    problems: list[str] = []
    client = prepared(service, tmp_path, "phone")
    client.ask("phone", 3)
    page = opened(browser, f"{service.address}#/campaign/phone", problems, viewport=PHONE)
    card = page.locator(".candidate").last
    card.get_by_role("textbox").fill("1e300")
    card.get_by_role("button", name="Tell").click()
    expect(page.locator("#problem")).to_contain_text("within")
    expect(card.get_by_role("alert")).to_contain_text("within")
    assert page.evaluate("scrollY") > 100
    assert in_sight(page, "#problem")
    assert page.locator("#problem button").evaluate("node => node.getBoundingClientRect().height < 50")
    expect(card.get_by_role("textbox")).to_have_value("1e300")
    page.locator("#problem button").click()
    page.get_by_label("or for").fill("2000")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.get_by_text("One asks for 1 to 1024 at once, 2000 came")).to_be_visible()
    assert len(client.status("phone")["pending"]) == 3
    assert too_small(page) == []
    assert not problems


def test_what_was_told_is_shown_digit_by_digit_and_candidates_are_counted_once(
    service: Service, browser: Browser, tmp_path: Path
) -> None:
    problems: list[str] = []
    client = prepared(service, tmp_path, "digits")
    for candidate, value in (("l1", -123456789.125), ("l2", 1234567.25), ("l2", 1234567.25), ("l3", -0.0)):
        client.tell("digits", candidate, value)
    page = opened(browser, f"{service.address}#/campaign/digits", problems, viewport=PHONE)
    rows = page.locator(".history tbody tr")
    expect(rows).to_contain_text(["0", "1234567.25 (best)", "1234567.25 (best)", "-123456789.125"])
    expect(page.locator(".facts")).to_contain_text("3 of 60 candidates, 4 times in all")
    expect(page.locator(".facts strong")).to_have_text("1234567.25")
    assert "-0" not in page.locator(".history tbody").inner_text().split()
    ticks = page.locator(".chart .tick")
    expect(ticks.first).to_be_visible()
    expect(page.locator(".chart.ranking .tick").first).to_be_visible()
    assert "-0" not in ticks.all_inner_texts()
    assert page.evaluate("[...document.querySelectorAll('.chart .tick')].every((tick) => tick.getBBox().x >= 14)")
    expect(page.locator(".swatches")).to_be_visible()  # news may put another in its place while one scrolls to it
    assert page.evaluate("new Set([...document.querySelectorAll('.swatch')].map((s) => s.offsetTop)).size") == 1
    page.goto(service.address)
    expect(page.locator(".card").filter(has_text="digits")).to_contain_text("4 measurements, 60 candidates")
    assert too_small(page) == []
    assert not problems


def test_a_candidate_is_read_from_its_title_with_close_at_hand(
    service: Service, browser: Browser, tmp_path: Path
) -> None:
    problems: list[str] = []
    rows = [{"name": f"n{n}", "heat": str(n), "note": "" if n % 2 else "x y z " * 90, "gain": ""} for n in range(9)]
    campaigns.write(tmp_path / "p.csv", rows)
    client = dkaf.Client(service.address)
    upload = client.upload(tmp_path / "p.csv")["upload"]
    client.create("long", upload, id="name", response="gain", kinds={"note": "ignore"})
    client.tell("long", "n2", 1.0)
    client.ask("long", 8)
    page = opened(browser, f"{service.address}#/campaign/long", problems, viewport=PHONE)
    assert page.evaluate(
        "[...document.querySelectorAll('[aria-labelledby]')].map((node) => node.getAttribute('aria-labelledby'))"
        ".every((id) => document.getElementById(id))"
    )
    card = page.locator(".candidate").filter(has=page.get_by_role("heading", name="n1", exact=True))
    card.scroll_into_view_if_needed()
    expect(card.locator(".columns")).to_contain_text("heat")
    assert card.locator(".columns div").all_inner_texts() == ["heat\n1", "note\n\N{EN DASH}"]  # and no gain
    page.locator(".chart.map .point[aria-label^='n2:']").dispatch_event("click")
    expect(page.locator("#candidate h2")).to_be_focused()
    expect(page.locator("#candidate")).not_to_contain_text("gain")
    assert in_sight(page, "#candidate h2")
    assert in_sight(page, "#candidate .actions button")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert not problems


def test_failed_and_released_candidates_come_back(service: Service, browser: Browser, tmp_path: Path) -> None:
    problems: list[str] = []
    client = prepared(service, tmp_path, "back")
    one, two = (candidate["id"] for candidate in client.ask("back", 2))
    page = opened(browser, f"{service.address}#/campaign/back", problems)
    page.get_by_role("button", name=f"{one} failed").click()
    expect(page.locator(".failed")).to_contain_text(one)
    page.get_by_role("button", name=f"Release {two}").click()
    expect(page.locator(".candidate")).to_have_count(0)
    expect(page.locator("#news")).to_have_text(f"{two} is released.")
    page.locator("#news").click()
    expect(page.locator("#news")).to_be_empty()
    page.locator(".failed").get_by_role("button", name=f"Release {one}").click()
    expect(page.locator(".failed")).to_have_count(0)
    status = client.status("back")
    assert (status["pending"], status["failed"], status["history"]) == ([], [], [])
    assert not problems


def test_an_address_that_names_nothing_says_so(service: Service, browser: Browser) -> None:
    problems: list[str] = []
    page = opened(browser, f"{service.address}#/campaign/%", problems)
    expect(page.get_by_text("This address names no view")).to_be_visible()
    page.goto(f"{service.address}#/campaign/nope")
    expect(page.get_by_text("There is no such campaign")).to_be_visible()
    expect(page.get_by_role("button", name="Ask for 1")).to_have_count(0)
    page.get_by_role("link", name="All campaigns").click()
    expect(page.get_by_role("heading", name="Campaigns", level=1)).to_be_visible()
    assert not problems


def test_a_table_with_semicolons_in_latin_1_and_known_values_becomes_a_campaign(
    service: Service, browser: Browser, tmp_path: Path
) -> None:
    problems: list[str] = []
    lines = ["Größe;constructor;__proto__;yield"]
    lines += [f"ö{n};{n * 3 % 7};{n * 5 % 11};{n / 2 if n < 3 else ''}" for n in range(12)]
    (tmp_path / "excel.csv").write_bytes("\n".join(lines).encode("cp1252"))
    page = opened(browser, f"{service.address}#/new", problems)
    page.get_by_label("Drop a CSV file here").set_input_files(tmp_path / "excel.csv")
    expect(page.get_by_text("12 candidates, 4 columns")).to_be_visible()
    expect(page.get_by_label("Columns are separated by")).to_have_value(";")
    expect(page.get_by_label("Encoding")).to_have_value("cp1252")
    page.get_by_label("Encoding").select_option("utf-8")
    expect(page.locator("#problem")).to_contain_text("“Encoding”")
    expect(page.get_by_label("Encoding")).to_have_value("cp1252")
    page.get_by_label("Columns are separated by").select_option("|")
    expect(page.locator("#problem")).to_contain_text("“Columns are separated by”")
    page.get_by_label("Column that names candidates").select_option("Größe")
    page.get_by_label("What constructor is").select_option("categorical")
    page.get_by_label("What __proto__ is").select_option("categorical")
    page.get_by_role("button", name="Begin the campaign").click()  # what is measured has to be said
    page.locator("[name=response]").select_option("yield")
    expect(page.get_by_label("Take over the 3 values of 12 rows")).to_be_checked()
    page.reload()
    expect(page.get_by_label("What __proto__ is")).to_have_value("categorical")
    page.get_by_role("button", name="Begin the campaign").click()
    expect(page.locator(".history tbody tr")).to_contain_text(["1", "0.5", "0"])
    assert told(dkaf.Client(service.address), "excel") == [("ö0", 0.0, None), ("ö1", 0.5, None), ("ö2", 1.0, None)]
    assert not problems


def test_many_columns_fold_and_a_policy_that_is_sent_says_what_they_are(
    service: Service, browser: Browser, tmp_path: Path
) -> None:
    problems: list[str] = []
    rows = [row | {f"c{n}": str(n) for n in range(40)} for row in campaigns.bread(5)]
    campaigns.write(tmp_path / "wide.csv", rows, [*campaigns.COLUMNS[:-1], *(f"c{n}" for n in range(40))])
    page = opened(browser, f"{service.address}#/new", problems)
    assert page.get_by_label("Drop a CSV file here").get_attribute("accept") == ".csv,.tsv,.parquet,.pq"
    page.get_by_label("Drop a CSV file here").set_input_files(tmp_path / "wide.csv")
    expect(page.get_by_text("24 more columns")).to_be_visible()
    expect(page.get_by_label("What c39 is")).to_be_hidden()
    page.get_by_text("More", exact=True).click()
    page.get_by_label("Add a policy file").set_input_files(campaigns.policy(tmp_path))
    expect(page.locator("[name=policy]")).to_have_value("bread")
    expect(page.get_by_label("Name of what is measured")).to_have_value("rise")
    expect(page.get_by_role("row", name="oven")).to_contain_text("categor")
    expect(page.get_by_role("row", name="c0")).to_contain_text("not used")
    page.get_by_role("button", name="Begin the campaign").click()
    expect(page.locator(".facts")).to_contain_text("Policy dkaf ucb")
    page.get_by_role("button", name="Ask for 1").click()
    expect(page.locator(".candidate .expected")).to_contain_text("±")
    assert not problems


def test_a_molecule_is_drawn_in_its_card(service: Service, browser: Browser, tmp_path: Path) -> None:
    pytest.importorskip("rdkit", reason="needs the extra dkaf[chem]")
    problems: list[str] = []
    molecules = ["CCO", "CC(=O)Nc1ccc(O)cc1", "c1ccccc1", "CCN", "CCCl", "CC(C)O"]
    campaigns.write(tmp_path / "m.csv", [{"smiles": text, "dose": str(n)} for n, text in enumerate(molecules)])
    client = dkaf.Client(service.address)
    client.create("drawn", client.upload(tmp_path / "m.csv")["upload"], id="smiles")
    (asked,) = client.ask("drawn")
    page = opened(browser, f"{service.address}#/campaign/drawn", problems)
    drawn = page.get_by_role("img", name=f"Molecule {asked['id']}")
    expect(drawn).to_be_visible()
    assert drawn.evaluate("node => node.decode().then(() => node.naturalWidth)") > 100
    assert not problems


def test_a_policy_is_trained_from_the_page_to_its_end(browser: Browser, tmp_path: Path) -> None:
    problems: list[str] = []
    service = Service(tmp_path / "data")
    try:
        for name in ("past1", "past2", "past3"):
            client = prepared(service, tmp_path, name)
            client.tell_all(name, [(row["loaf"], row["rise"]) for row in campaigns.bread(99, 60)[:12]])

        def shorter(route: Route) -> None:
            if route.request.method != "POST":
                return route.continue_()
            return route.continue_(post_data=json.dumps(route.request.post_data_json | {"settings": TINY}))

        page = opened(browser, f"{service.address}#/training", problems, viewport=PHONE)
        page.route("**/api/jobs", shorter)
        page.get_by_label("Name of the policy").fill("learnt")
        page.get_by_role("button", name="Train").click()
        expect(page.locator("main form .wrong")).to_contain_text("none is chosen")
        assert too_small(page) == []
        page.get_by_label("All of them").check()
        page.get_by_role("button", name="Train").click()
        job = page.locator("section").filter(has_text="Under way and done").locator(".card")
        expect(job).to_contain_text("From 3 campaigns (past1, past2, past3), begun")
        expect(job).to_contain_text("by local")
        expect(job).to_contain_text("done", timeout=4 * SECONDS)
        expect(page.locator("section").filter(has_text="Policies").locator(".card")).to_contain_text("for rise")
        page.get_by_role("button", name="Train").click()
        expect(page.locator("main form .wrong")).to_contain_text("names of their own")
        page.on("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Remove learnt").click()
        expect(page.get_by_text("No policies yet.")).to_be_visible()
        assert not problems
    finally:
        service.stop()


def test_who_does_not_sign_in_is_asked_again(browser: Browser, tmp_path: Path) -> None:
    from dkaf.service.tokens import Tokens

    (tmp_path / "data").mkdir()
    Tokens(tmp_path / "data").create("vera", "viewer")
    service = Service(tmp_path / "data")
    try:
        page = opened(browser, service.address, [])
        expect(page.get_by_label("Token")).to_be_visible()
        for _ in range(3):
            page.keyboard.press("Escape")
        expect(page.get_by_label("Token")).to_be_visible()
    finally:
        service.stop()


def test_a_viewer_signs_in_and_sees_nothing_that_changes(browser: Browser, tmp_path: Path) -> None:
    from dkaf.service.tokens import Tokens

    problems: list[str] = []
    (tmp_path / "data").mkdir()
    token = Tokens(tmp_path / "data").create("vera", "viewer")
    service = Service(tmp_path / "data")
    try:
        page = opened(browser, service.address, problems)
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("dialog")).to_contain_text("wrong or was revoked")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_text("No campaigns yet")).to_be_visible()
        expect(page.get_by_role("link", name="Begin a campaign")).to_have_count(0)
        page.goto(f"{service.address}#/training")
        expect(page.get_by_text("No training yet")).to_be_visible()
        expect(page.get_by_role("button", name="Train")).to_have_count(0)
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Token")).to_be_visible()
        assert not problems
    finally:
        service.stop()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("demo") / "data", scenes.scene())
    yield service
    service.stop()


def test_somebody_rates_ten_goes_on_after_a_reload_and_sees_the_best(demo: Service, browser: Browser) -> None:
    problems: list[str] = []
    page = opened(browser, demo.address, problems)
    page.get_by_role("link", name="Demo").click()
    expect(page.get_by_role("table")).to_contain_text("Random")
    page.get_by_role("link", name="Rate handwritten digits").click()
    for number in range(1, 11):
        expect(page.get_by_role("heading", name=f"{number} of 10")).to_be_visible()
        if number == 4:
            page.reload()
            expect(page.get_by_role("heading", name="4 of 10")).to_be_visible()
            page.get_by_role("button", name="Take back the last").click()
            expect(page.get_by_role("heading", name="3 of 10")).to_be_focused()
            page.get_by_role("button", name="2 of 10", exact=True).click()
            expect(page.get_by_role("heading", name="4 of 10")).to_be_focused()
        page.get_by_role("button", name=f"{8 if number == 6 else 1} of 10", exact=True).press("Enter")
    expect(page.get_by_role("heading", name="The best of 10: rated 8")).to_be_focused()
    expect(page.get_by_text("expected to be liked")).to_be_visible()
    assert page.locator("ol.tried li strong").all_inner_texts() == ["1", "1", "2", "1", "1", "8", "1", "1", "1", "1"]
    page.get_by_role("button", name="The same again").click()
    expect(page.get_by_role("heading", name="1 of 10")).to_be_visible()
    assert not problems


def test_a_race_shows_everybodys_distances_and_ends_with_the_target(demo: Service, browser: Browser) -> None:
    problems: list[str] = []
    page = opened(browser, f"{demo.address}#/demo/race/2", problems)
    start = scenes.scene().pool(2)["start"]["candidate"]
    for number, row in enumerate([row for row in range(11) if row != start][:10], 1):
        expect(page.get_by_role("heading", name=f"Try {number} of 10")).to_be_visible()
        assert page.get_by_text("The hidden one", exact=True).count() == 0
        page.get_by_role("button", name=f"Try picture {row}", exact=True).click()
        expect(page.locator("ol.tried").first.locator("li")).to_have_count(number)
    expect(page.get_by_role("heading", name="The hidden one", exact=True)).to_be_visible()
    rows = page.locator(".board tbody tr")
    expect(rows).to_have_count(4)
    expect(rows.nth(1)).to_contain_text("of 40")
    page.reload()
    expect(page.get_by_role("heading", name="The hidden one", exact=True)).to_be_visible()
    assert not problems


def test_a_move_that_got_no_answer_can_be_made_again(demo: Service, browser: Browser) -> None:
    page = opened(browser, f"{demo.address}#/demo/rate/1", [])
    expect(page.get_by_role("heading", name="1 of 10")).to_be_visible()
    page.route("**/next?*", lambda route: route.abort())
    page.get_by_role("button", name="5 of 10", exact=True).click()
    expect(page.get_by_role("alert").filter(has_text="does not answer")).to_be_visible()
    page.unroute("**/next?*")
    page.get_by_role("button", name="6 of 10", exact=True).click()
    expect(page.get_by_role("heading", name="2 of 10")).to_be_visible()
    assert page.locator("ol.tried li strong").all_inner_texts() == ["6"]
