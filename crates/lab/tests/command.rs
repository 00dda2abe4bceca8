//! `stetfs-lab`: the list, what it prints and writes, and its exit codes.

use std::fs;
use std::process::Command;

use serde_json::Value;

/// Runs the program; its exit code, standard output and standard error.
fn lab(args: &[&str]) -> (Option<i32>, String, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_stetfs-lab"))
        .args(args)
        .output()
        .expect("the program");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (out.status.code(), text(out.stdout), text(out.stderr))
}

fn good(args: &[&str]) -> String {
    let (code, out, err) = lab(args);
    assert_eq!(code, Some(0), "{args:?}: {err}");
    out
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

#[test]
fn the_list_and_wrong_names() {
    let list = good(&[]);
    for id in [
        "shortcut-example",
        "shortcut-fig4",
        "shortcut-fig5",
        "shortcut-recovery",
    ] {
        assert!(list.contains(id), "{list}");
        assert!(good(&["--help"]).contains(id));
    }
    for (args, words) in [
        (
            &["fig99"][..],
            &["no experiment fig99", "shortcut-fig4"][..],
        ),
        (&["shortcut-fig5", "--scale", "0"], &["a scale of 0"]),
    ] {
        let (code, _, err) = lab(args);
        assert!(
            code == Some(1) && words.iter().all(|word| err.contains(word)),
            "{err}"
        );
    }
}

#[test]
fn a_report_as_tables_as_json_and_as_plots() {
    let dir = tempfile::tempdir().expect("a directory");
    let place = dir.path().join("out");
    let shown = good(&["shortcut-example", "--out", place.to_str().expect("UTF-8")]);
    for word in ["1224 bytes", "4 KB: four blocks", "reached", "written: "] {
        assert!(shown.contains(word), "no {word} in {shown}");
    }
    let kept = fs::read_to_string(place.join("shortcut-example.json")).expect("the report");
    let printed = json(&good(&["shortcut-example", "--json", "-"]));
    let (kept, printed) = (json(&kept), &printed["reports"][0]);
    for field in ["version", "experiment", "seed", "scale", "checks", "charts"] {
        assert!(
            !kept[field].is_null() && kept[field] == printed[field],
            "{field}"
        );
    }
    let svg = fs::read_to_string(place.join("shortcut-example-figure2.svg")).expect("an SVG");
    assert!(svg.starts_with("<svg") && svg.contains("adp-s"));
    let png = fs::read(place.join("shortcut-example-figure2.png")).expect("a PNG");
    assert!(png.starts_with(b"\x89PNG"));
}
