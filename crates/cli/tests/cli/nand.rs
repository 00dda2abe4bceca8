//! nand: a part with a layer in a file.

use std::fs;
use std::os::unix::fs::FileExt;

use crate::run::{Lab, json, stetfs};

fn made(args: &[&str]) -> (Lab, String) {
    let lab = Lab::new();
    let file = lab.str("flash.nand");
    let mut all = vec!["nand", "create", &file, "--size", "4M"];
    all.extend(args);
    stetfs(&all).ok();
    (lab, file)
}

#[test]
fn a_part_is_made_and_described() {
    let (_lab, file) = made(&[]);
    let said = stetfs(&["nand", "info", &file]).ok();
    for words in [
        "NAND part of 4 MiB, 256 erase blocks of 32 pages of 512 + 16 bytes",
        "endurance 100000 erases",
        "flash translation layer",
        "mounted 1 times",
    ] {
        assert!(said.contains(words), "{said}");
    }
    let info = json(&stetfs(&["nand", "info", "--json", &file]).ok());
    assert_eq!(info["part"]["blocks"], 256);
    let capacity = info["layer"]["capacity"].as_u64().unwrap();
    assert!(capacity > 3 << 20 && capacity < 4 << 20, "{info}");
    assert_eq!(info["layer"]["mapped"], 0);
    stetfs(&["nand", "create", &file]).fails(1, &["flash.nand exists already"]);
}

#[test]
fn more_over_provisioning_leaves_less() {
    let capacity = |percent: &str| {
        let (_lab, file) = made(&["--flawless", "-o", percent]);
        let info = json(&stetfs(&["nand", "info", "--json", &file]).ok());
        assert_eq!(info["part"]["endurance_erases"], serde_json::Value::Null);
        info["layer"]["capacity"].as_u64().unwrap() as f64
    };
    let ratio = capacity("28") / capacity("10");
    assert!((ratio - 0.8).abs() < 0.01, "{ratio}");
}

#[test]
fn a_new_part_is_clean_and_unworn() {
    let (_lab, file) = made(&["--part", "jftl", "--seed", "7"]);
    let said = stetfs(&["nand", "check", &file]).ok();
    assert!(said.contains("the map is sound; 0 pages read"), "{said}");
    let said = stetfs(&["nand", "wear", &file]).ok();
    assert!(said.contains("from 0 to ") && said.contains('#'), "{said}");
    assert!(said.contains("too little was written"), "{said}");
    let wear = json(&stetfs(&["nand", "wear", "--json", &file]).ok());
    let bins = wear["histogram"].as_array().unwrap();
    let blocks: u64 = bins.iter().map(|b| b["blocks"].as_u64().unwrap()).sum();
    assert_eq!(blocks, wear["blocks"].as_u64().unwrap());
    assert_eq!(wear["life"], serde_json::Value::Null);
}

#[test]
fn what_is_no_part_or_holds_no_layer() {
    let lab = Lab::new();
    let file = lab.str("text");
    fs::write(&file, [b'x'; 8192]).unwrap();
    for command in ["info", "check", "wear"] {
        stetfs(&["nand", command, &file]).fails(1, &["is not a NAND part: it holds"]);
    }
    stetfs(&["nand", "info", &lab.str("none")]).fails(1, &["none"]);
    stetfs(&["nand", "create", &lab.str("new"), "--size", "1K"]).fails(2, &["not a possible size"]);
    stetfs(&["nand", "create", &lab.str("new"), "--size", "256K"]).fails(1, &["keeps"]);
    assert!(!lab.path("new").exists());
    let (_lab, file) = made(&["--flawless"]);
    // The anchors' blocks: 256 records of 64 bytes are before the pages.
    let image = fs::OpenOptions::new().write(true).open(&file).unwrap();
    let cells = 4096 + 256 * 64;
    image
        .write_all_at(&vec![0x5a; 8 * 32 * 528], cells)
        .unwrap();
    drop(image);
    stetfs(&["nand", "check", &file]).fails(1, &["no flash translation layer"]);
    let said = stetfs(&["nand", "info", &file]).ok();
    assert!(said.contains("no flash translation layer"), "{said}");
}

#[test]
fn a_part_holds_a_volume_like_any_file() {
    let lab = Lab::new();
    let file = lab.str("flash.nand");
    stetfs(&["nand", "create", &file, "--size", "16M"]).ok();
    stetfs(&["mkfs", "--size", "64M", &file]).fails(1, &["more than the device has"]);
    stetfs(&["mkfs", "-b", "1K", "-L", "flash", &file]).ok();
    stetfs(&["mkfs", &file]).fails(1, &["holds an ext4 volume", "--force"]);
    let info = json(&stetfs(&["info", "--json", &file]).ok());
    assert_eq!(
        (&info["label"], &info["state"]),
        (&"flash".into(), &"clean".into())
    );
    let place = format!("{file}:/");
    stetfs(&["cp", "src/main.rs", "src/args.rs", &place]).ok();
    let main = format!("{file}:/main.rs");
    let copied = stetfs(&["cat", &main]).ok();
    assert_eq!(copied, fs::read_to_string("src/main.rs").unwrap());
    stetfs(&["fsck", "-n", &file]).ok();
    let layer = || json(&stetfs(&["nand", "info", "--json", &file]).ok())["layer"].clone();
    let before = layer();
    let pages = before["host_pages"].as_u64().unwrap();
    assert!(pages > 200, "the counts outlive the commands: {before}");
    // What e2fsck repairs is written back to the part.
    stetfs(&["fsck", "-y", &file, "--", "-D"]);
    stetfs(&["fsck", "-n", &file]).ok();
    assert!(layer()["host_pages"].as_u64().unwrap() > pages);
    assert_eq!(stetfs(&["cat", &main]).ok(), copied);
    stetfs(&["nand", "check", &file]).ok();
}
