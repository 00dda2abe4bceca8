//! journal: shows transactions that debugfs wrote, compared with debugfs's own logdump.

use std::fs;

use crate::run::{Lab, debugfs, debugfs_write, json, stetfs};

#[test]
fn an_empty_journal_says_so() {
    let lab = Lab::new();
    let image = lab.volume(&[]);
    let said = stetfs(&["journal", &image]).ok();
    let first = "journal of 1024 blocks in inode 8; no features\n";
    assert!(said.contains(first), "{said}");
    assert!(said.contains("nothing to recover"), "{said}");
}

/// Writes two transactions. The first changes 3000 and 3001, a bitmap, and a block that looks like
/// a journal record; the second revokes 3001.
fn written(mkfs: &[&str], open: &str) -> (Lab, String) {
    let lab = Lab::new();
    let image = lab.volume(mkfs);
    let path = |name: &str, content: &[u8]| {
        fs::write(lab.path(name), content).unwrap();
        lab.str(name)
    };
    let two = path("two", &[0x55; 8192]);
    let mut record = [0x66; 4096];
    record[..4].copy_from_slice(&0xc03b_3998_u32.to_be_bytes());
    let record = path("record", &record);
    let bitmap = debugfs(&image, "imap <1>");
    assert!(bitmap.contains("located at block"), "{bitmap}");
    let table: u64 = bitmap
        .split("located at block ")
        .nth(1)
        .unwrap()
        .split(',')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    let one = path(
        "one",
        &fs::read(&image).unwrap()[table as usize * 4096..][..4096],
    );
    debugfs_write(
        &image,
        &[
            open,
            &format!("jw -b 3000,3001 {two}"),
            &format!("jw -b 3002 {record}"),
            &format!("jw -b {table} {one}"),
            "jw -r 3001",
            "jc",
        ],
    );
    (lab, image)
}

#[test]
fn transactions_are_told_in_words() {
    for (mkfs, open) in [
        (vec![], "jo"),
        (vec![], "jo -c -v 2"),
        (vec![], "jo -c -v 3"),
        (vec!["--type", "ext3"], "jo"),
    ] {
        let (_lab, image) = written(&mkfs, open);
        let said = stetfs(&["journal", &image]).ok();
        let theirs = debugfs(&image, "logdump");
        let commits = theirs.matches("type 2 (commit").count();
        assert_eq!(
            said.matches("recovery replays it").count(),
            commits,
            "{said}\n{theirs}"
        );
        assert!(said.contains("(revoked by transaction"), "{said}\n{theirs}");
        assert!(said.contains("(escaped)"), "{said}");
        assert!(
            said.contains("inode table of group 0: inodes 1-16"),
            "{said}"
        );
        assert!(said.contains("revoke of 1 blocks: 3001"), "{said}");
        assert!(
            !said.contains("checksum is wrong") && !said.contains("damaged"),
            "{open}: {said}\n{theirs}"
        );
        for line in theirs.lines().filter(|l| l.contains("FS block")) {
            // "  FS block 3000 logged at sequence 1, journal block 2 (flags 0x8)"
            let words: Vec<&str> = line.split_whitespace().collect();
            let (home, at) = (words[2], words[8]);
            let ours = said.lines().any(|l| {
                let mut words = l.split_whitespace();
                words.next() == Some(at)
                    && words.next() == Some("block")
                    && words.next() == Some(home)
            });
            assert!(ours, "{line} is not in {said}");
        }
    }
}

#[test]
fn json_has_the_same() {
    let (_lab, image) = written(&[], "jo");
    let dump = json(&stetfs(&["journal", "--json", &image]).ok());
    let transactions = dump["transactions"].as_array().unwrap();
    assert!(transactions.iter().all(|t| t["fate"] == "replayed"));
    let homes: Vec<u64> = transactions
        .iter()
        .flat_map(|t| t["records"].as_array().unwrap())
        .filter(|r| r["type"] == "descriptor")
        .flat_map(|r| r["blocks"].as_array().unwrap())
        .map(|b| b["home"].as_u64().unwrap())
        .collect();
    assert_eq!(&homes[..3], [3000, 3001, 3002]);
}

#[test]
fn after_recovery_the_old_ones_are_still_told() {
    let (_lab, image) = written(&[], "jo");
    stetfs(&["fsck", "-p", &image]).ok();
    assert!(
        stetfs(&["journal", &image])
            .ok()
            .contains("nothing to recover")
    );
    let said = stetfs(&["journal", "--all", &image]).ok();
    assert!(
        said.contains("old: recovery does not look at it") && said.contains("block 3002"),
        "{said}"
    );
}

#[test]
fn a_damaged_commit_ends_the_log() {
    let (_lab, image) = written(&[], "jo -c -v 3");
    let whole = json(&stetfs(&["journal", "--json", &image]).ok());
    let commit = whole["transactions"][0]["records"]
        .as_array()
        .unwrap()
        .iter()
        .find(|r| r["type"] == "commit")
        .unwrap()["at"]
        .as_u64()
        .unwrap();
    let physical: usize = debugfs(&image, &format!("bmap <8> {commit}"))
        .trim()
        .parse()
        .unwrap();
    let mut bytes = fs::read(&image).unwrap();
    bytes[physical * 4096 + 0x30] ^= 1;
    fs::write(&image, &bytes).unwrap();
    let said = stetfs(&["journal", &image]).ok();
    assert!(
        said.contains("no commit: recovery ends before it")
            && said.contains("damaged: journal block"),
        "{said}"
    );
    assert!(!said.contains("recovery replays it"), "{said}");
}

#[test]
fn a_volume_without_a_journal_says_so() {
    let lab = Lab::new();
    let image = lab.str("disk.img");
    crate::run::tool("mke2fs", &["-q", "-t", "ext2", &image, "16M"]).ok();
    stetfs(&["journal", &image]).fails(1, &["has no journal", "tune2fs -j"]);
}
