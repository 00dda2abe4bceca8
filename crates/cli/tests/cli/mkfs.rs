//! mkfs and info, judged by dumpe2fs and e2fsck.

use std::fs::{self, File};

use crate::mounted::can_mount;
use crate::run::{Lab, assert_clean, dumpe2fs, json, sha256, stetfs, tool};

#[test]
fn a_small_volume_gets_the_defaults() {
    let lab = Lab::new();
    let image = lab.str("disk.img");
    let said = stetfs(&["mkfs", &image, "--size", "16M", "-L", "lab"]).ok();
    assert!(
        said.contains("ext4 \"lab\", 16 MiB, 4096 blocks of 4 KiB"),
        "{said}"
    );
    assert!(said.contains("a journal of 4 MiB"), "{said}");
    assert_clean(&image);
    assert_eq!(dumpe2fs(&image, "Block size"), "4096");
    assert_eq!(dumpe2fs(&image, "Inode size"), "256");
    assert_eq!(dumpe2fs(&image, "Block count"), "4096");
    assert_eq!(dumpe2fs(&image, "Filesystem volume name"), "lab");
    assert_eq!(dumpe2fs(&image, "Total journal blocks"), "1024");
    assert!(dumpe2fs(&image, "Filesystem features").contains("metadata_csum"));
}

#[test]
fn the_journal_grows_with_the_volume_and_as_asked() {
    let lab = Lab::new();
    let image = lab.str("disk.img");
    stetfs(&["mkfs", &image, "--size", "1G"]).ok();
    assert_eq!(
        dumpe2fs(&image, "Total journal blocks"),
        (64 * 256).to_string()
    );
    assert_eq!(fs::metadata(&image).unwrap().len(), 1 << 30);
    stetfs(&["mkfs", &image, "--force", "--journal-size", "8M"]).ok();
    assert_eq!(
        dumpe2fs(&image, "Total journal blocks"),
        (8 * 256).to_string()
    );
}

#[test]
fn other_shapes_are_made() {
    let lab = Lab::new();
    let image = lab.volume(&[
        "--type",
        "ext3",
        "--block-size",
        "1K",
        "--",
        "-N",
        "4000",
        "-m",
        "0",
    ]);
    assert_clean(&image);
    assert_eq!(dumpe2fs(&image, "Block size"), "1024");
    assert_eq!(dumpe2fs(&image, "Reserved block count"), "0");
    assert!(dumpe2fs(&image, "Inode count").parse::<u32>().unwrap() >= 4000);
    assert!(!dumpe2fs(&image, "Filesystem features").contains("extent"));
    assert!(stetfs(&["info", &image]).ok().contains("an ext3 volume"));
}

#[test]
fn what_is_there_is_not_overwritten_unasked() {
    let lab = Lab::new();
    let image = lab.volume(&["-L", "precious"]);
    let before = sha256(&image);
    stetfs(&["mkfs", &image, "--size", "16M"])
        .fails(1, &["holds an ext4 volume \"precious\"", "--force"]);
    assert_eq!(sha256(&image), before);

    let other = lab.str("letter.txt");
    fs::write(&other, vec![b'x'; 1 << 20]).unwrap();
    stetfs(&["mkfs", &other, "--size", "16M"]).fails(1, &["letter.txt holds text", "--force"]);
    assert_eq!(fs::metadata(&other).unwrap().len(), 1 << 20);

    stetfs(&["mkfs", &image, "--force", "--size", "20M"]).ok();
    assert_eq!(dumpe2fs(&image, "Filesystem volume name"), "<none>");
    assert_clean(&image);
}

#[test]
fn what_is_in_use_is_never_overwritten() {
    let lab = Lab::new();
    let image = lab.volume(&[]);
    let before = sha256(&image);
    let holder = File::open(&image).unwrap();
    holder.try_lock().unwrap();
    stetfs(&["mkfs", &image, "--force"]).fails(1, &["in use"]);
    assert_eq!(sha256(&image), before);
}

#[test]
fn the_backing_file_of_a_loop_device_is_left_alone() {
    if !rustix::process::geteuid().is_root() || tool("losetup", &["-f"]).code != 0 {
        eprintln!("SKIPPED: no loop devices here");
        return;
    }
    let lab = Lab::new();
    let image = lab.volume(&["-L", "below"]);
    let device = tool("losetup", &["-f", "--show", &image]).ok();
    let device = device.trim();
    let file = stetfs(&["mkfs", "--force", &image]);
    let itself = stetfs(&["mkfs", device]);
    let forced = stetfs(&["mkfs", device, "--force", "-L", "above"]);
    let larger = stetfs(&["mkfs", device, "--force", "--size", "20M"]);
    tool("losetup", &["-d", device]).ok();
    file.fails(1, &[&image, "is the backing file of", device, "losetup -d"]);
    itself.fails(1, &[device, "holds an ext4 volume \"below\""]);
    forced.ok();
    larger.fails(1, &["20 MiB is more than the device has (16 MiB)"]);
    assert_eq!(dumpe2fs(&image, "Filesystem volume name"), "above");
    assert_clean(&image);
}

#[test]
fn wrong_arguments_are_told_and_leave_nothing_behind() {
    let lab = Lab::new();
    let image = lab.str("disk.img");
    stetfs(&["mkfs", &image]).fails(2, &["its size is not known", "--size"]);
    stetfs(&["mkfs", &image, "--size", "wide"]).fails(2, &["`wide` is not a size"]);
    stetfs(&["mkfs", &image, "--size", "1M"]).fails(1, &["too small", "8 MiB"]);
    stetfs(&["mkfs", &image, "--size", "8M"]).fails(1, &["a journal of 1024 blocks", "--size"]);
    stetfs(&["mkfs", &image, "--size", "16M", "--block-size", "8K"])
        .fails(2, &["8192", "1K, 2K or 4K"]);
    stetfs(&[
        "mkfs",
        &image,
        "--size",
        "16M",
        "-L",
        "a name that is much too long",
    ])
    .fails(2, &["16 bytes"]);
    stetfs(&["mkfs", &image, "--size", "16M", "--", "-Z"])
        .fails(1, &["invalid option", "mke2fs(8)"]);
    stetfs(&["mkfs", &image, "--size", "16M", "--", "-N", "999999999"])
        .fails(1, &["mke2fs could not make the volume"]);
    assert!(!lab.path("disk.img").exists());
    stetfs(&["mkfs", lab.path("").to_str().unwrap(), "--size", "16M"])
        .fails(1, &["neither a file nor a block device"]);
}

#[test]
fn info_agrees_with_dumpe2fs() {
    let lab = Lab::new();
    let image = lab.volume(&["-L", "agreed"]);
    let info = json(&stetfs(&["info", "--json", &image]).ok());
    let number = |field: &str| dumpe2fs(&image, field).parse::<u64>().unwrap();
    assert_eq!(info["uuid"], dumpe2fs(&image, "Filesystem UUID"));
    assert_eq!(info["label"], "agreed");
    assert_eq!(info["blocks"], number("Block count"));
    assert_eq!(info["blocks_free"], number("Free blocks"));
    assert_eq!(info["inodes_free"], number("Free inodes"));
    assert_eq!(info["state"], "clean");
    let features: Vec<&str> = info["features"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| f.as_str().unwrap())
        .collect();
    assert_eq!(features.join(" "), dumpe2fs(&image, "Filesystem features"));
    assert_eq!(info["journal"]["blocks"], number("Total journal blocks"));
    assert_eq!(
        info["journal"]["sequence"].as_u64().unwrap(),
        u64::from_str_radix(
            dumpe2fs(&image, "Journal sequence").trim_start_matches("0x"),
            16
        )
        .unwrap()
    );
    assert_eq!(info["journal"]["start"], number("Journal start"));
    let journal: Vec<&str> = info["journal"]["features"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| f.as_str().unwrap())
        .collect();
    let theirs = dumpe2fs(&image, "Journal features");
    assert_eq!(
        journal.join(" "),
        if theirs == "(none)" { "" } else { &theirs }
    );
}

#[test]
fn info_names_what_cannot_be_done() {
    let lab = Lab::new();
    let image = lab.str("disk.img");
    tool(
        "mke2fs",
        &["-q", "-t", "ext4", "-O", "encrypt", &image, "16M"],
    )
    .ok();
    let said = stetfs(&["info", &image]).ok();
    assert!(
        said.contains("cannot mount") && said.contains("encrypt"),
        "{said}"
    );
    stetfs(&["ls", &image]).fails(1, &["encrypt"]);
    tool("mke2fs", &["-q", "-F", "-t", "ext2", &image, "16M"]).ok();
    let said = stetfs(&["info", &image]).ok();
    assert!(
        said.contains("an ext2 volume") && said.contains("journal         none"),
        "{said}"
    );
}

#[test]
fn what_is_no_volume_is_told() {
    let lab = Lab::new();
    let file = lab.str("file");
    stetfs(&["info", &file]).fails(1, &[&file, "No such file"]);
    fs::write(&file, b"short").unwrap();
    stetfs(&["info", &file]).fails(1, &[&file, "it holds text; no ext4 volume"]);
    fs::write(&file, vec![0; 1 << 20]).unwrap();
    stetfs(&["info", &file]).fails(1, &[&file, "1 MiB of zeros", "stetfs mkfs"]);
    let image = lab.volume(&[]);
    let mut bytes = fs::read(&image).unwrap();
    bytes[1024 + 0x78] ^= 1;
    fs::write(&image, &bytes).unwrap();
    stetfs(&["info", &image]).fails(1, &[&image, "superblock: checksum", "stetfs fsck"]);
    stetfs(&["info", "/proc"]).fails(1, &["/proc", "directory"]);
}

/// The volume's own scheme: e2fsprogs show it, a mount takes it, and the kernel still mounts the
/// volume.
#[test]
fn a_volume_gets_a_scheme() {
    let lab = Lab::new();
    let image = lab.volume(&["--scheme", "stet"]);
    assert_clean(&image);
    assert_eq!(dumpe2fs(&image, "Mount options"), "scheme=stet");
    let info = stetfs(&["info", "--json", &image]).ok();
    assert_eq!(json(&info)["mount_options"], "scheme=stet");
    assert!(
        stetfs(&["info", &image])
            .ok()
            .contains("mounted with    scheme=stet")
    );
    let ran = stetfs(&[
        "mkfs",
        &lab.str("other.img"),
        "--size",
        "16M",
        "--scheme",
        "nope",
    ]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.err.contains("nope") && !fs::exists(lab.str("other.img")).unwrap());
    let dir = lab.str("mnt");
    fs::create_dir(&dir).unwrap();
    if can_mount() {
        let ran = stetfs(&["mount", &image, &dir]);
        assert!(ran.err.contains("scheme stet"), "{ran:?}");
        fs::write(format!("{dir}/f"), "content").unwrap();
        stetfs(&["umount", &dir]).ok();
        assert_clean(&image);
    }
    if rustix::process::geteuid().is_root() {
        tool("mount", &["-o", "loop", &image, &dir]).ok();
        crate::run::unmount(&dir);
        assert_clean(&image);
    } else {
        eprintln!("SKIPPED: only root can ask the kernel to mount it");
    }
}
