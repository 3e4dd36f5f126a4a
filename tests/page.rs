//! A build's page in a headless Chromium of Debian's: on a wide and a narrow screen nothing leaves the window, the search
//! finds packages, and it prints.
//!
//! Left out of CI, since the browser is 100 MB of packages: `cargo test --test page -- --ignored`. Without the standard
//! harness, since an ordinary user becomes root of a namespace before the first thread starts.
#![allow(clippy::print_stdout, reason = "a test talks to who runs it")]

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use slipway::host::progress::{Kind, Outcome, StepRecord};
use slipway::host::sandbox::{Sandbox, become_root_of_namespace};
use slipway::host::session::Session;
use slipway::install::tools::{self, Tools};
use slipway::layer::usage::Usage;
use slipway::lock;
use slipway::publish::page::{FileRow, Page, Part, Removed, Row};
use slipway::recipe::{SetRequest, load};

const TEST: &str = "the_page_is_readable_on_a_screen_a_phone_and_paper";
/// Path of the test's files inside the sandbox.
const PLACE: &str = "/page";
const BROWSER: &str = "/usr/lib/chromium/chromium-headless-shell";
/// Runs in the page behind its own script, and writes what it sees into the document.
const PROBE: &str = r##"<script>
const seen = document.documentElement.dataset;
seen.overflow = document.documentElement.scrollWidth - innerWidth;
seen.boxes = document.querySelectorAll(".map div[title]").length;
seen.outside = Array.from(document.querySelectorAll(".map div[title]")).filter(box => {
  const map = document.querySelector(".map").getBoundingClientRect(), here = box.getBoundingClientRect();
  return here.right > map.right + 2 || here.bottom > map.bottom + 2 || here.left < map.left - 2;
}).length;
seen.hiddensearch = document.querySelector(".search").hidden;
search.value = "libc6 root"; search.dispatchEvent(new Event("input"));
seen.shown = Array.from(document.querySelectorAll("#packages tbody tr")).filter(row => !row.hidden).length;
seen.found = found.textContent;
seen.ink = getComputedStyle(document.body).color;
seen.paper = getComputedStyle(document.body).backgroundColor;
</script>"##;

fn main() -> Result<()> {
    if !std::env::args().any(|argument| argument == "--ignored") {
        println!("test {TEST} ... ignored");
        return Ok(());
    }
    become_root_of_namespace()?;
    let session = Session::open(Kind::Quiet)?;
    let browser = browser(&session)?;
    let place = tempfile::tempdir()?;
    let html = page(&browser)?.html(Some(BOOT))?;
    let probed = html.replace("</body>", &format!("{PROBE}\n</body>"));
    fs::write(place.path().join("page.html"), &html)?;
    fs::write(place.path().join("probed.html"), probed)?;
    for (width, height) in [(1280, 900), (360, 740)] {
        looks_well(&browser, place.path(), width, height)
            .with_context(|| format!("in a window of {width} by {height}"))?;
    }
    prints(&browser, place.path())?;
    if let Some(folder) = std::env::var_os("SLIPWAY_PICTURES") {
        for name in ["1280.png", "360.png", "page.pdf"] {
            fs::copy(place.path().join(name), Path::new(&folder).join(name))?;
        }
    }
    println!("test {TEST} ... ok");
    Ok(())
}

const BOOT: &str = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 980 40\" width=\"980\" height=\"40\"></svg>";

/// Debian's browser with a font.
fn browser(session: &Session) -> Result<Tools> {
    let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes/node.toml");
    let recipe = load(&recipe).map_err(|mistakes| anyhow::anyhow!("{mistakes}"))?;
    let request = SetRequest {
        name: "tools-page".into(),
        packages: ["chromium-headless-shell", "fonts-dejavu-core"]
            .map(str::to_owned)
            .into(),
        dependencies: true,
        essential: false,
        recommends: false,
        backports: Vec::new(),
    };
    let locked = lock::resolve(session, &recipe, std::slice::from_ref(&request))?;
    tools::install(
        session,
        &request.name,
        &locked.fetch(session, &request.name)?,
    )
}

/// A page about the browser's own tree: real names and sizes.
fn page(browser: &Tools) -> Result<Page> {
    let tree = slipway::host::tree::walk(&browser.root)?;
    let files = tree.iter().filter(|item| item.meta.is_file());
    let entries: Vec<_> = files
        .map(|item| slipway::layer::Entry::copy(&item.inside, 0o644, &item.path))
        .collect();
    let row = |at: usize| Row {
        name: format!("library-with-a-long-name-{at}"),
        version: format!("1:{at}.0-1+deb13u{at}"),
        kind: "library".to_owned(),
        sets: "root".to_owned(),
    };
    let mut components: Vec<Row> = (0..300).map(row).collect();
    components.push(Row {
        name: "libc6".to_owned(),
        ..row(300)
    });
    let step = |at: u32| StepRecord {
        name: format!("step {at} with a rather long name of its own"),
        start: f64::from(at),
        seconds: 1.5,
        bytes: Some(1 << 30),
        outcome: Outcome::Made,
    };
    Ok(Page {
        title: "a-rather-long-name-of-an-image-0.1.0".to_owned(),
        facts: vec![("Root hash".to_owned(), "0123456789abcdef".repeat(4))],
        usage: Usage::of(&entries)?,
        partitions: vec![Part {
            label: "root-a".to_owned(),
            size: 2 << 30,
            used: 350 << 20,
        }],
        steps: (0..30).map(step).collect(),
        components,
        removed: vec![Removed {
            name: "a-removed-package-with-a-long-name".to_owned(),
            version: "1:1.0-1+deb13u1".to_owned(),
            stays: "/usr/sbin/a-program-with-a-rather-long-name".to_owned(),
            missed_by: (0..20)
                .map(|at| {
                    format!("/usr/share/a-folder/a-script-{at} (its-package): /usr/bin/a-program")
                })
                .collect(),
        }],
        files: vec![FileRow {
            path: "kubelet.oci/blobs/sha256/0123456789abcdef0123456789abcdef".to_owned(),
            size: 900 << 20,
            sha256: "ab".repeat(32),
        }],
    })
}

fn chromium(browser: &Tools, place: &Path) -> Sandbox {
    browser.sandbox().bind(place, PLACE).env("HOME", PLACE)
}

fn run(browser: &Tools, place: &Path, arguments: &[String]) -> Result<String> {
    let out = chromium(browser, place)
        .command(BROWSER)
        .args(["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .args(arguments)
        .run()?;
    Ok(String::from_utf8(out)?)
}

fn looks_well(browser: &Tools, place: &Path, width: u32, height: u32) -> Result<()> {
    let window = format!("--window-size={width},{height}");
    let dom = run(
        browser,
        place,
        &[
            window.clone(),
            "--dump-dom".to_owned(),
            format!("file://{PLACE}/probed.html"),
        ],
    )?;
    let seen = |name: &str| -> Result<&str> {
        let (_, rest) = dom
            .split_once(&format!("data-{name}=\""))
            .with_context(|| format!("the probe has not run: no {name}"))?;
        Ok(rest.split('"').next().unwrap_or_default())
    };
    let overflow: i64 = seen("overflow")?.parse()?;
    ensure!(overflow <= 0, "the page is {overflow} pixels too wide");
    ensure!(seen("boxes")?.parse::<usize>()? > 20, "too few boxes");
    ensure!(
        seen("outside")? == "0",
        "{} boxes outside",
        seen("outside")?
    );
    ensure!(seen("hiddensearch")? == "false", "the search is hidden");
    ensure!(seen("shown")? == "1", "{} rows shown", seen("shown")?);
    ensure!(seen("found")? == "1 of 301", "{}", seen("found")?);
    ensure!(seen("ink")? != seen("paper")?, "{}", seen("ink")?);
    run(
        browser,
        place,
        &[
            window,
            format!("--screenshot={PLACE}/{width}.png"),
            format!("file://{PLACE}/page.html"),
        ],
    )?;
    let png = fs::read(place.join(format!("{width}.png")))?;
    ensure!(png.starts_with(b"\x89PNG") && png.len() > 5000);
    Ok(())
}

fn prints(browser: &Tools, place: &Path) -> Result<()> {
    run(
        browser,
        place,
        &[
            format!("--print-to-pdf={PLACE}/page.pdf"),
            format!("file://{PLACE}/page.html"),
        ],
    )?;
    let pdf = fs::read(place.join("page.pdf"))?;
    ensure!(pdf.starts_with(b"%PDF") && pdf.len() > 20_000);
    Ok(())
}
