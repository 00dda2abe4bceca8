//! `stetfs lab ground`: what runs where, shards that add up, commands that repeat a cell, and the
//! page in a browser.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use stetfs_lab::ground::sheet::Summary;
use stetfs_lab::ground::{BASELINE, Ground};
use stetfs_schemes::for_use;
use stetfs_testkit::host::{needs, run};
use stetfs_testkit::skip_unless;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn lab(args: &[&str]) -> String {
    let out = run(env!("CARGO_BIN_EXE_stetfs-lab"), args).expect("it runs");
    String::from_utf8(out.stdout).expect("UTF-8")
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// Each atomic scheme of the registry runs somewhere; where one does not run, the reason is there.
#[test]
fn all_schemes_run_somewhere() {
    let ground = Ground::whole("", 1).expect("the ground");
    let pairings = ground.pairings().expect("pairings");
    assert_eq!(ground.workloads.len(), 10);
    assert_eq!(
        pairings.len(),
        ground.media.len() * ground.workloads.len() * ground.systems.len()
    );
    let name = |n: usize| ground.systems[n].name.as_str();
    let mut pairs = BTreeSet::new();
    for pairing in &pairings {
        match &pairing.runs {
            Ok(cells) => {
                assert_eq!(cells.len(), 1);
                pairs.insert((
                    ground.media[pairing.medium].name.as_str(),
                    name(pairing.system),
                ));
            }
            Err(why) => assert!(
                why.contains(name(pairing.system).split(':').next().expect("a scheme")),
                "{why}"
            ),
        }
    }
    assert!(pairs.len() >= 40, "{pairs:?}");
    for scheme in for_use().iter().filter(|scheme| scheme.about.atomic) {
        let scheme = scheme.about.name;
        let is_its = |system: &str| system.split(':').next() == Some(scheme);
        assert!(pairs.iter().any(|(_, system)| is_its(system)), "{scheme}");
    }
    // The control and our own scheme run everywhere. dj runs on NAND too, since its paper's
    // abstract makes a promise about flash.
    for place in &ground.media {
        assert!(pairs.contains(&(&place.name, BASELINE)) && pairs.contains(&(&place.name, "stet")));
    }
    assert!(pairs.contains(&("NAND+4M", "dj:data=journal")), "{pairs:?}");
}

const TINY: [&str; 8] = [
    "ground",
    "--only",
    "card+16M,SSD,varmail,create,dj,stet",
    "--seeds",
    "2",
    "--set",
    "volume=64M",
    "--resume",
];

/// Shards fill one directory, from which the whole is taken. The command beside a cell gives its
/// numbers again.
#[test]
fn parts_add_up_and_commands_repeat() {
    let dir = tempfile::tempdir().expect("a directory");
    let place = dir.path().to_str().expect("UTF-8");
    let ground = |more: &[&str]| lab(&[&TINY[..], &[place, "--json", "-"], more].concat());
    let seeds = |sheet: &Value| -> Vec<usize> {
        let squares = sheet["squares"].as_array().expect("squares").iter();
        squares
            .filter(|square| square["command"].is_string())
            .map(|square| square["runs"].as_array().map_or(0, Vec::len))
            .collect()
    };
    let half = seeds(&json(&ground(&["--shard", "1/2"])));
    // On the card, jbd2, stet and dj run in two modes; on the drive, jbd2 and stet.
    assert_eq!(half.len(), 2 * (4 + 2));
    let runs: usize = half.iter().sum();
    assert!(0 < runs && runs < 2 * half.len(), "{half:?}");
    let both = json(&ground(&["--shard", "2/2"]));
    assert!(seeds(&both).iter().all(|seeds| *seeds == 2), "{both}");
    assert_eq!(both, json(&ground(&[])));
    let square = both["squares"]
        .as_array()
        .expect("squares")
        .iter()
        .find(|square| square["system"] == 2 && square["command"].is_string())
        .expect("a cell of dj");
    let command = square["command"].as_str().expect("a command");
    let told = command
        .strip_prefix("stetfs lab ")
        .expect("a command of ours");
    let shell = format!("{} {told} --json -", env!("CARGO_BIN_EXE_stetfs-lab"));
    let again = run("sh", &["-c", &shell]).expect("it runs");
    let again = json(&String::from_utf8(again.stdout).expect("UTF-8"));
    for n in 0..2 {
        assert_eq!(
            again["runs"][0]["outcomes"][n], square["runs"][n][1],
            "{command}"
        );
    }
}

/// Returns what a browser makes of the page, with this behind its `#`.
fn dom(page: &Path, chosen: &str) -> String {
    let profile = tempfile::tempdir().expect("a directory");
    let profile = format!("--user-data-dir={}", profile.path().display());
    let address = format!("file://{}#{chosen}", page.display());
    let args = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        &profile,
        "--dump-dom",
        &address,
    ];
    let out = Command::new("chromium")
        .args(args)
        .output()
        .expect("chromium");
    String::from_utf8(out.stdout).expect("UTF-8")
}

/// Returns the texts of the cells of a table's rows.
fn cells(dom: &str, table: &str) -> Vec<Vec<String>> {
    let (_, from) = dom.split_once(&format!("id=\"{table}\"")).expect("a table");
    let (_, body) = from.split_once("<tbody>").expect("a body");
    let (body, _) = body.split_once("</tbody>").expect("its end");
    let rows = body.split("</tr>").filter(|row| row.contains("<td"));
    rows.map(|row| {
        let cells = row.split("</td>").filter(|cell| cell.contains("<td"));
        cells
            .map(|cell| cell.rsplit_once("<td").expect("a cell").1)
            .map(|cell| cell.split_once('>').expect("its begin").1.to_owned())
            .collect()
    })
    .collect()
}

/// The page sorts, filters and draws in a browser, without anything else.
#[test]
fn the_page_sorts_filters_and_draws() {
    skip_unless!(needs(false, false, &["chromium"]));
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str| dir.path().join(name);
    let (page, store) = (file("ground.html"), file("store"));
    let docs = format!("{ROOT}/docs");
    let paths = [&store, &page].map(|path| path.to_str().expect("UTF-8"));
    lab(&[&TINY[..], &[paths[0], "--html", paths[1], "--docs", &docs]].concat());
    // The runs: two workloads of jbd2, stet and two modes of dj, which run on the card only.
    let all = dom(&page, "sort=durable&direction=down");
    let rows = cells(&all, "cell-table");
    assert_eq!(rows.len(), 2 * 2 * 4, "{rows:?}");
    let time = |row: &Vec<String>| row[4].split(' ').next().and_then(|n| n.parse::<f64>().ok());
    let times: Vec<Option<f64>> = rows.iter().map(time).collect();
    let there: Vec<f64> = times.iter().copied().flatten().collect();
    assert_eq!(there.len(), 12, "{rows:?}");
    assert!(there.is_sorted_by(|a, b| a >= b), "{there:?}");
    // What did not run stands last, with its reason.
    assert!(
        rows[12..]
            .iter()
            .all(|row| row.iter().any(|cell| cell.contains("needs memory")))
    );
    let few = cells(
        &dom(
            &page,
            "medium=card%2B16M&system=dj&sort=durable&words=create",
        ),
        "cell-table",
    );
    assert_eq!(few.len(), 2, "{few:?}");
    assert!(
        few.iter()
            .all(|row| row[0] == "card+16M" && row[1] == "create"),
        "{few:?}"
    );
    assert!(few.iter().all(|row| row[2].starts_with("dj:")), "{few:?}");
    assert!(time(&few[0]) <= time(&few[1]), "{few:?}");
    // A bar for each system and workload there; a point in a band for claims; the ledger.
    let bars = dom(
        &page,
        "plot-medium=card%2B16M&plot-number=p99&plot-ratio=no",
    );
    assert_eq!(bars.matches("class=\"bar\"").count(), 2 * 4);
    assert!(bars.matches("class=\"point\"").count() > 0);
    assert!(cells(&bars, "claim-table").len() > 90 && cells(&bars, "assumption-table").len() > 20);
    // Each figure's plots are pictures with the paper's points and bands.
    let widths = bars
        .match_indices("data-width=\"")
        .map(|(at, name)| &bars[at + name.len()..]);
    let widths: Vec<_> = widths.filter_map(|rest| rest.split('"').next()).collect();
    assert!(widths.len() > 60, "{widths:?}");
    assert!(widths.iter().all(|width| *width == "1200"), "{widths:?}");
    assert!(bars.contains("the paper%3A "), "no band of a sweep");
    // The page loads nothing from elsewhere.
    let html = fs::read_to_string(&page).expect("the page");
    for far in ["src=\"http", "href=\"http", "@import", "fetch("] {
        assert!(!html.contains(far), "{far}");
    }
}

/// The summary in the tree is of the present ground.
#[test]
fn the_summary_is_of_this_ground() {
    let path = Path::new(ROOT).join("docs/ground.json");
    let kept: Summary =
        serde_json::from_slice(&fs::read(path).expect("docs/ground.json")).expect("a summary");
    let ground = Ground::whole("", 1).expect("the ground");
    assert!(kept.seeds >= 5 && kept.number == "durable");
    let pairings = ground.pairings().expect("pairings");
    let mut rows = kept.rows.iter();
    for (medium, place) in ground.media.iter().enumerate() {
        for (workload, job) in ground.workloads.iter().enumerate() {
            let row = rows.next().expect("a row");
            assert_eq!((&row.medium, &row.workload), (&place.name, &job.name));
            let runs = pairings.iter().filter(|pairing| {
                (pairing.medium, pairing.workload) == (medium, workload) && pairing.runs.is_ok()
            });
            let names: BTreeSet<&String> = runs.map(|p| &ground.systems[p.system].name).collect();
            assert_eq!(
                row.ratios.keys().collect::<BTreeSet<_>>(),
                names,
                "{row:?}; make ground"
            );
            assert_eq!(row.ratios[BASELINE].0, 1.0);
        }
    }
    assert!(rows.next().is_none());
    let picture = fs::read_to_string(Path::new(ROOT).join("docs/ground.svg")).expect("a picture");
    assert!(picture.starts_with("<svg") && picture.matches("<rect").count() > 400);
}
