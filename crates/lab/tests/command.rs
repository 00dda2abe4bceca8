//! `stetfs-lab`: its list, its output, and its exit codes.

use std::fs;
use std::process::Command;

use serde_json::Value;

/// Runs the program; returns its exit code, standard output and standard error.
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
    for id in ["shortcut-example", "shortcut-fig4", "shortcut-fig5"] {
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
    let svg = fs::read_to_string(place.join("shortcut-example-1.svg")).expect("an SVG");
    assert!(svg.starts_with("<svg") && svg.contains("adp-s"));
    let png = fs::read(place.join("shortcut-example-1.png")).expect("a PNG");
    assert!(png.starts_with(b"\x89PNG"));
}

/// A question of the user's own runs every combination and has every number. The same question has
/// the same answer.
#[test]
fn a_question_of_ones_own() {
    let question = [
        "run",
        "--system",
        "jbd2,dj:threshold=50",
        "--medium",
        "card+nvram",
        "--set",
        "nvm=4M,volume=64M,commit=each,1",
        "--workload",
        "overwrite file=1M ops=64 differ=5,50",
        "--seeds",
        "2",
    ];
    let with = |more: &[&str]| good(&[&question[..], more].concat());
    let table = with(&[]);
    for words in [
        "commit=each differ=5",
        "commit=1s differ=50",
        "dj:threshold=50",
        " \u{b1} ",
    ] {
        assert!(
            table.contains(&words.replace("=1s", "=1")),
            "no {words} in {table}"
        );
    }
    let csv = with(&["--csv"]);
    assert_eq!(csv, with(&["--csv", "--jobs", "1"]));
    let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines.len(), 1 + 2 * 2 * 2 * 2, "{csv}");
    assert!(
        lines.iter().all(|line| line.len() == lines[0].len()),
        "{csv}"
    );
    let column = |name: &str| {
        let at = lines[0].iter().position(|head| head.starts_with(name));
        at.unwrap_or_else(|| panic!("no {name} in {:?}", lines[0]))
    };
    let (home, durable) = (column("home"), column("durable"));
    for line in &lines[1..] {
        let number = |at: usize| line[at].parse::<f64>().expect("a number");
        assert!(
            0.0 < number(durable) && number(durable) <= number(home),
            "{line:?}"
        );
    }
    let runs = json(&with(&["--json", "-"]));
    assert_eq!(runs["runs"].as_array().map(Vec::len), Some(8));
    assert_eq!(
        runs["runs"][0]["outcomes"].as_array().map(Vec::len),
        Some(2)
    );
    for (more, words) in [
        (&["--set", "nvmm=1M"][..], "no setting nvmm"),
        (&["--workload", "fio sise=1"], "no setting sise"),
        (&["--workload", "foo"], "no workload foo"),
        (&["--system", "shortcut"], "for volumes in memory"),
        (&["--system", "jftl"], "a device that remaps"),
        (&["--system", "jbd2:data=odd"], "data=odd"),
        (&["--show", "speed"], "no number speed"),
    ] {
        let (code, _, err) = lab(&[&["run"], more].concat());
        assert!(code == Some(1) && err.contains(words), "{more:?}: {err}");
    }
}

/// A stored run is taken instead of being run again, whatever the words of the question. A file of
/// another run is refused.
#[test]
fn what_was_run_is_kept() {
    let dir = tempfile::tempdir().expect("a directory");
    let place = dir.path().to_str().expect("UTF-8");
    let run = |load: &str| {
        let set = "commit=each,volume=64M";
        let ask = [
            "run",
            "--set",
            set,
            "--workload",
            load,
            "--csv",
            "--resume",
            place,
        ];
        lab(&ask)
    };
    let (code, first, err) = run("fio file=1M ops=20");
    assert_eq!(code, Some(0), "{err}");
    let of_code = fs::read_dir(dir.path()).expect("a directory").next();
    let of_code = of_code.expect("the code's").expect("an entry").path();
    let files = || -> Vec<_> {
        let files = fs::read_dir(&of_code).expect("runs");
        files.map(|file| file.expect("an entry").path()).collect()
    };
    // jbd2 and stet.
    assert_eq!(files().len(), 2);
    for file in files() {
        let text = fs::read_to_string(&file).expect("a run");
        let changed = text.replace("\"calls\":", "\"calls\":1");
        assert_ne!(text, changed);
        fs::write(&file, changed).expect("a run");
    }
    let (_, second, _) = run("fio ops=20 file=1024K");
    let calls = |csv: &str| -> Vec<f64> {
        let head = csv.lines().next().expect("a head");
        let at = head.split(',').position(|name| name == "calls");
        let at = at.unwrap_or_else(|| panic!("no calls in {head}"));
        let rows = csv.lines().skip(1).map(|row| row.split(',').nth(at));
        rows.map(|calls| calls.expect("calls").parse().expect("a number"))
            .collect()
    };
    let kept: Vec<f64> = calls(&first)
        .iter()
        .map(|calls| format!("1{calls}"))
        .map(|n| n.parse().expect("a number"))
        .collect();
    assert_eq!(calls(&second), kept, "{first}{second}");
    assert_eq!(files().len(), 2);
    // Another seed is another run; a file of another run is refused.
    let (one, two) = (&files()[0], &files()[1]);
    fs::copy(one, two).expect("a copy");
    let (code, _, err) = run("fio file=1M ops=20");
    assert!(
        code == Some(1) && err.contains("it is of another run"),
        "{err}"
    );
}

/// With memory beside a NAND part, scheme dj logs there, and the part is programmed less.
#[test]
fn memory_beside_nand() {
    let runs = json(&good(&[
        "run",
        "--system",
        "jbd2,dj",
        "--medium",
        "nand",
        "--set",
        "nvm=4M,journal=4M,fill=90,commit=each",
        "--workload",
        "fio file=4M block=100 ops=200",
        "--json",
        "-",
    ]));
    let of = |n: usize, name: &str| {
        runs["runs"][n]["outcomes"][0][name]
            .as_f64()
            .unwrap_or_else(|| panic!("no {name} in {runs}"))
    };
    assert!(
        of(1, "deltas") >= 200.0 && of(1, "recovery") > 0.0,
        "{runs}"
    );
    assert!(of(1, "device") < of(0, "device") / 2.0, "{runs}");
    assert!(of(1, "wear.mean") > 0.0, "{runs}");
}

/// The processor's time is added to the media's time, which stays what it was.
#[test]
fn a_processor_takes_time_too() {
    let runs = json(&good(&[
        "run",
        "--system",
        "stet",
        "--set",
        "processor=none,xeon-2019,volume=64M,commit=each",
        "--workload",
        "fio file=1M ops=100",
        "--json",
        "-",
    ]));
    let of = |n: usize, name: &str| {
        runs["runs"][n]["outcomes"][0][name]
            .as_f64()
            .expect("a number")
    };
    assert_eq!(of(0, "media"), of(0, "durable"));
    assert!(of(1, "durable") - of(1, "media") > 100.0 * 4e-6, "{runs}");
    assert!(
        (of(1, "media") / of(0, "media") - 1.0).abs() < 1e-9,
        "{runs}"
    );
}

/// A list of calls is a workload: each call is made and counted, and a wrong line is named. A
/// stored run of another list in the same file is not taken for one of this list.
#[test]
fn a_workload_of_ones_own() {
    let dir = tempfile::tempdir().expect("a directory");
    let list = dir.path().join("list");
    let (file, kept) = (list.display(), dir.path().join("kept"));
    let kept = kept.to_str().expect("UTF-8");
    let workload = format!("calls file={file}");
    let run = |text: &str| {
        fs::write(&list, text).expect("the list");
        let asked = ["run", "--system", "jbd2,stet", "--set", "volume=64M"];
        let rest = ["--workload", &workload, "--resume", kept, "--json", "-"];
        lab(&[&asked[..], &rest].concat())
    };
    let calls = |text: &str| {
        let (code, out, err) = run(text);
        assert_eq!(code, Some(0), "{err}");
        let runs = json(&out);
        [0, 1].map(|n| {
            let number = &runs["runs"][n]["outcomes"][0]["calls"];
            number.as_f64().expect("a number")
        })
    };
    let ten = "create f\nwrite f 0 64K\nrun\nrepeat 10\n write f random 4K\n fsync f\nend\n";
    // The file is opened, each repetition writes and syncs, and the file is closed at the end.
    assert_eq!(calls(ten), [22.0; 2]);
    assert_eq!(calls(&ten.replace("10", "20")), [42.0; 2]);
    let (code, _, err) = run("run\nunlink nothing\n");
    let words = format!("{file}, line 2: remove nothing");
    assert!(code == Some(1) && err.contains(&words), "{err}");
    let (code, _, err) = lab(&["run", "--workload", "strace file=/none under=/"]);
    assert!(code == Some(1) && err.contains("/none"), "{err}");
    assert!(good(&["run", "--list"]).contains("fdatasync PATH"));
}
