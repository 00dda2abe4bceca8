//! grow and shrink: e2fsck judges the volume, and the files are those that were there.

use std::fs;

use crate::fsck::{PRIVATE, cut_off};
use crate::partition::{GPT, assert_clean_at, disk, outside};
use crate::run::{Lab, assert_clean, debugfs, dumpe2fs, has, json, sha256, stetfs, tool};
use crate::twice;

const MIB: u64 = 1 << 20;

fn length(image: &str) -> u64 {
    fs::metadata(image).unwrap().len()
}

/// Blocks of the volume, in bytes.
fn size(image: &str) -> u64 {
    json(&stetfs(&["info", "--json", image]).ok())["size"]
        .as_u64()
        .unwrap()
}

#[test]
fn a_volume_becomes_larger_and_smaller_and_keeps_its_files() {
    if !has("resize2fs") {
        return;
    }
    let lab = Lab::new();
    let (tree, image) = (crate::from::tree(&lab), lab.str("disk.img"));
    stetfs(&["mkfs", &image, "--from", &tree, "--block-size", "1K"]).ok();
    let root = format!("{image}:/");
    let assert_whole = || {
        assert_clean(&image);
        assert_eq!(length(&image), size(&image));
        let differs = stetfs(&["diff", &tree, &root]);
        assert_eq!(
            differs.out,
            format!("only in {root}: lost+found (directory)\n")
        );
    };
    let before = length(&image);
    for (args, expected) in [
        (&["grow", "--size", "48M"][..], 48 * MIB),
        (&["grow", "--size", "+16M"], 64 * MIB),
        (&["shrink", "--size", "40M"], 40 * MIB),
        (&["grow", "--size", "40M"], 40 * MIB),
    ] {
        let told = stetfs(&[args, &[&image]].concat()).ok();
        assert_eq!(length(&image), expected, "{args:?}: {told}");
        assert_whole();
    }
    // As small as can be: about what mkfs makes of the same content.
    stetfs(&["shrink", &image]).ok();
    let least = length(&image);
    assert!(least < before + 2 * MIB, "{least} of {before}");
    assert_whole();
    let told = json(&stetfs(&["shrink", "--json", "--free", "8M", &image]).ok());
    let now = length(&image);
    assert_eq!(now, least, "it does not become larger");
    assert_eq!(told["size"], now);
    stetfs(&["grow", "--size", "100M", &image]).ok();
    stetfs(&["shrink", "--free", "8M", &image]).ok();
    assert!((least + 7 * MIB..least + 10 * MIB).contains(&length(&image)));
    assert_whole();

    // A file that was made longer by hand.
    let file = fs::File::options().write(true).open(&image).unwrap();
    file.set_len(70 * MIB).unwrap();
    stetfs(&["grow", &image]).ok();
    assert_eq!(size(&image), 70 * MIB);
    assert_whole();

    let sum = sha256(&image);
    stetfs(&["grow", &image]).fails(2, &["is as large as its file", "--size"]);
    stetfs(&["grow", "--size", "1M", &image]).fails(1, &["is 70 MiB already", "stetfs shrink"]);
    stetfs(&["shrink", "--size", "80M", &image]).fails(1, &["is 70 MiB already", "stetfs grow"]);
    assert_eq!(sha256(&image), sum);
    stetfs(&["shrink", "--size", "2M", &image]).fails(1, &["cannot be smaller than"]);
    assert_whole();
    // Blocks have numbers of 32 bits there. The file is as long as before.
    let small = lab.str("small.img");
    tool(
        "mke2fs",
        &[
            "-q", "-t", "ext4", "-b", "1024", "-O", "^64bit", &small, "16M",
        ],
    )
    .ok();
    stetfs(&["grow", "--size", "5T", &small]).fails(1, &["resize2fs", "32 bits"]);
    assert_eq!(length(&small), 16 * MIB);
    stetfs(&["grow", &lab.str("none")]).fails(1, &["none"]);
    stetfs(&["nand", "create", &lab.str("part"), "--size", "64M"]).ok();
    stetfs(&["grow", "--size", "1G", &lab.str("part")]).fails(1, &["NAND part"]);
}

/// Only stetfs can recover these; resize2fs would refuse or lose what is in their logs.
#[test]
fn the_volumes_own_scheme_recovers_first() {
    if !has("resize2fs") {
        return;
    }
    for options in PRIVATE {
        let (_lab, image) = cut_off(options);
        let told = stetfs(&["grow", "--size", "+16M", &image]).ok();
        assert!(told.contains("recovered"), "{options}: {told}");
        assert_clean(&image);
        assert_eq!(length(&image), size(&image));
        assert_eq!(debugfs(&image, "cat /kept"), "what was synced");
    }
}

#[test]
fn a_volume_fills_its_partition_and_no_more() {
    if !has("sfdisk") || !has("resize2fs") {
        return;
    }
    let lab = Lab::in_memory();
    let (image, list) = disk(&lab, GPT);
    let (_, start, end) = list[1];
    let other = outside(&image, start, end);
    let of = |args: &[&str]| stetfs(&[args, &["--partition", "2", &image]].concat());
    let size = || {
        let told = json(&of(&["info", "--json"]).ok());
        told["size"].as_u64().unwrap()
    };
    of(&["shrink"]).ok();
    assert!(size() < end / 2, "{}", size());
    assert_clean_at(&image, start);
    of(&["grow", "--size", "20M"]).ok();
    assert_eq!(size(), 20 * MIB);
    of(&["grow", "--size", "31M"]).fails(1, &["more than there is room for"]);
    of(&["grow"]).ok();
    assert_eq!(size(), end / 4096 * 4096);
    assert_clean_at(&image, start);
    assert!(outside(&image, start, end) == other, "what is beside it");
    assert_eq!(length(&image), 100 * MIB);
}

#[test]
fn a_volume_in_use_is_left_alone() {
    if !twice::can() || !has("resize2fs") {
        return;
    }
    let lab = Lab::new();
    let image = lab.volume(&[]);
    let mount = twice::Mount::up(&lab, &image, "mnt", "rw");
    for args in [&["grow", "--size", "+8M"][..], &["shrink"]] {
        stetfs(&[args, &[&image]].concat()).fails(1, &["is mounted on"]);
    }
    drop(mount);
    // A device has its size.
    let device = twice::Loop::new(&image, &[]);
    stetfs(&["grow", "--size", "+8M", &device.0]).fails(1, &["more than there is room for"]);
    stetfs(&["shrink", &device.0]).ok();
    assert!(size(&device.0) < length(&image));
    stetfs(&["grow", &device.0]).ok();
    assert_eq!(size(&device.0), length(&image));
    assert_eq!(dumpe2fs(&device.0, "Filesystem state"), "clean");
    tool("e2fsck", &["-fn", &device.0]).ok();
}
