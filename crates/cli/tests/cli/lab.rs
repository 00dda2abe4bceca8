//! `stetfs lab`: the list, what it prints and writes, and its exit codes.

use std::fs;

use crate::run::{Lab, json, stetfs};

#[test]
fn the_list_and_wrong_names() {
    let list = stetfs(&["lab"]).ok();
    for id in [
        "shortcut-example",
        "shortcut-fig4",
        "shortcut-fig5",
        "shortcut-recovery",
    ] {
        assert!(list.contains(id), "{list}");
        assert!(stetfs(&["lab", "--help"]).ok().contains(id));
    }
    stetfs(&["lab", "fig99"]).fails(1, &["no experiment fig99", "shortcut-fig4"]);
    stetfs(&["lab", "shortcut-fig5", "--scale", "0"]).fails(1, &["a scale of 0"]);
}

#[test]
fn a_report_as_tables_as_json_and_as_plots() {
    let lab = Lab::new();
    let dir = lab.str("out");
    let shown = stetfs(&["lab", "shortcut-example", "--out", &dir]).ok();
    for word in ["1224 bytes", "4 KB: four blocks", "reached", "written: "] {
        assert!(shown.contains(word), "no {word} in {shown}");
    }
    let kept = fs::read_to_string(lab.path("out/shortcut-example.json")).expect("the report");
    let printed = json(&stetfs(&["lab", "shortcut-example", "--json", "-"]).ok());
    let (kept, printed) = (json(&kept), &printed["reports"][0]);
    for field in ["version", "experiment", "seed", "scale", "checks", "charts"] {
        assert!(
            !kept[field].is_null() && kept[field] == printed[field],
            "{field}"
        );
    }
    let svg = fs::read_to_string(lab.path("out/shortcut-example-figure2.svg")).expect("an SVG");
    assert!(svg.starts_with("<svg") && svg.contains("adp-s"));
    let png = fs::read(lab.path("out/shortcut-example-figure2.png")).expect("a PNG");
    assert!(png.starts_with(b"\x89PNG"));
}
