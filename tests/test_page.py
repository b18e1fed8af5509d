"""The page in a browser: from a table to the best candidate, several people at once, and what gets lost on the way."""

import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import campaigns
import pytest
import scenes

pytest.importorskip("playwright", reason="the page is tested by Playwright: pip install dkaf[dev]")
pytest.importorskip("fastapi", reason="the page is served by FastAPI: pip install dkaf[serve]")
uvicorn = pytest.importorskip("uvicorn", reason="the page is served by uvicorn: pip install dkaf[serve]")

from playwright.sync_api import Browser, Page, expect, sync_playwright  # noqa: E402 - where it is there

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: apt-get install chromium")
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


class Process:
    """The same as people start it, which can be killed and started again at the same address."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, 0
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dkaf", "serve", "--data", str(self.folder), "--port", str(self.port)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        found = re.search(r"http://\S+:(\d+)/", self._process.stdout.readline())
        assert found
        self.address, self.port = found[0], int(found[1])

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


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
    truth = campaigns.pool(folder / "pool.csv")
    page.get_by_role("link", name="Begin a campaign").click()
    page.get_by_label("Drop a CSV file here").set_input_files(folder / "pool.csv")
    expect(page.get_by_text("60 candidates, 4 columns")).to_be_visible()
    page.get_by_label("Name of the campaign").fill(name)
    page.get_by_label("Column that names candidates").select_option("loaf")
    page.get_by_label("Budget").fill(str(budget))
    page.get_by_role("button", name="Begin the campaign").click()
    expect(page.get_by_role("heading", level=1, name=name)).to_be_visible()
    return truth


def tell_first(page: Page, truth: dict[str, float]) -> str:
    """Tell what the first card's candidate gives, by the keyboard; which it was."""
    card = page.locator(".candidate").first
    candidate = card.locator("h3").inner_text()
    card.get_by_role("textbox").fill(str(truth[candidate]))
    card.get_by_role("textbox").press("Enter")
    expect(page.locator(".history tbody tr").first).to_contain_text(candidate)
    return candidate


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
    service = Process(tmp_path / "data")
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
        service.start()
        page.reload()
        expect(page.locator(".history tbody tr")).to_contain_text([candidate])
        page.wait_for_function("sessionStorage.getItem('dkaf.outbox') === '{}'")
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
    page.get_by_label("Budget").fill("7")
    page.get_by_role("button", name="Begin the campaign").click()
    expect(page.locator("#problem")).to_contain_text("name another")
    expect(page.get_by_label("Budget")).to_have_value("7")
    page.reload()
    expect(page.get_by_label("Budget")).to_have_value("7")
    assert not problems


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
