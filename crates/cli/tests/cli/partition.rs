//! Volumes in partitions of a disk image: tables made by sfdisk, volumes judged by e2fsck at their
//! offset and by the kernel through loop devices.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::run::{Lab, dumpe2fs, has, json, sha256, stetfs, tool, unmount, wait_until};
use crate::twice::{Loop, Mount, can, mount};

const MIB: u64 = 1 << 20;

/// Makes `disk.img` of 100 MiB with a table that sfdisk makes from a script, and a volume in each
/// partition of Linux's type. Returns the image, and number and range of each partition, as sfdisk
/// says.
pub(crate) fn disk(lab: &Lab, script: &str) -> (String, Vec<(u64, u64, u64)>) {
    let image = lab.str("disk.img");
    let file = fs::File::create(&image).unwrap();
    file.set_len(100 * MIB).unwrap();
    fs::write(lab.path("script"), script).unwrap();
    let command = format!("sfdisk -q {image} < {}", lab.str("script"));
    tool("sh", &["-c", &command]).ok();
    let told = json(&tool("sfdisk", &["--json", &image]).ok());
    let mut list = Vec::new();
    for (n, p) in (0..).zip(told["partitiontable"]["partitions"].as_array().unwrap()) {
        let node = p["node"].as_str().unwrap();
        let number = node.strip_prefix(&image).unwrap().parse().unwrap();
        let bytes = |name: &str| p[name].as_u64().unwrap() * 512;
        let (start, size) = (bytes("start"), bytes("size"));
        list.push((number, start, size));
        if ["5", "f"].contains(&p["type"].as_str().unwrap()) {
            continue;
        }
        let (offset, blocks) = (format!("offset={start}"), (size / 4096).to_string());
        let label = format!("v{n}");
        let args = [
            "-q", "-F", "-t", "ext4", "-b", "4096", "-L", &label, "-E", &offset, &image, &blocks,
        ];
        tool("mke2fs", &args).ok();
    }
    (image, list)
}

pub(crate) const GPT: &str =
    "label: gpt\nsize=20M, name=\"the first\"\nsize=30M, type=U\nsize=30M\n";
const MBR: &str = "label: dos\nx1: size=20M\nx2: size=60M, type=5\nx5: size=20M\nx6: size=20M\n";

#[track_caller]
pub(crate) fn assert_clean_at(image: &str, offset: u64) {
    let ran = tool("e2fsck", &["-fn", &format!("{image}?offset={offset}")]);
    assert_eq!(ran.code, 0, "{ran:#?}");
}

/// Returns the bytes outside of a range.
pub(crate) fn outside(image: &str, start: u64, size: u64) -> Vec<u8> {
    let mut bytes = fs::read(image).unwrap();
    bytes[start as usize..(start + size) as usize].fill(0);
    bytes
}

#[test]
fn partitions_are_where_sfdisk_says() {
    if !has("sfdisk") {
        return;
    }
    for script in [GPT, MBR] {
        let lab = Lab::in_memory();
        let (image, list) = disk(&lab, script);
        let refused = stetfs(&["ls", &image]);
        for (number, start, _) in &list {
            let words = format!("\n     {number} at byte {start}, ");
            assert!(refused.err.contains(&words), "{words} in {refused:#?}");
        }
        refused.fails(1, &["partition table", "--partition 1", "with an ext4"]);
        let volumes = list.iter().filter(|p| !(script == MBR && p.0 == 2));
        for (number, start, size) in volumes {
            let number = number.to_string();
            let told = json(&stetfs(&["info", "--json", "--partition", &number, &image]).ok());
            assert_eq!(told["size"], *size / 4096 * 4096, "{told}");
            let at = stetfs(&["info", "--json", "--offset", &start.to_string(), &image]).ok();
            assert_eq!(json(&at)["uuid"], told["uuid"]);
        }
    }
}

/// Each command works in the partition, and on no byte outside of it.
#[test]
fn every_command_works_in_a_partition_and_only_there() {
    if !has("sfdisk") {
        return;
    }
    let lab = Lab::in_memory();
    let (image, list) = disk(&lab, MBR);
    let (number, start, size) = list[3];
    assert_eq!(number, 6);
    let before = outside(&image, start, size);
    let content = lab.str("content");
    fs::write(&content, vec![7; 3 << 20]).unwrap();
    let place = |path: &str| format!("{image}:{path}");
    let run = |args: &[&str]| {
        let mut all = vec![args[0], "--partition", "6"];
        all.extend(&args[1..]);
        stetfs(&all)
    };
    run(&["mkdir", "-p", &place("/d/e")]).ok();
    run(&["cp", &content, &place("/d/f")]).ok();
    run(&["ln", "-s", "f", &place("/d/l")]).ok();
    run(&["ln", &place("/d/f"), &place("/d/g")]).ok();
    run(&["mv", &place("/d/g"), &place("/d/h")]).ok();
    run(&["rm", "-r", &place("/d/e")]).ok();
    assert_eq!(run(&["ls", &place("/d")]).ok(), "f\nh\nl\n");
    run(&["cp", &place("/d/l"), &lab.str("back")]).ok();
    assert_eq!(sha256(lab.path("back")), sha256(&content));
    // A place names its own partition; one command may work on several.
    let other = format!("{image}?partition=1:/f");
    stetfs(&["cp", &format!("{image}?partition=6:/d/f"), &other]).ok();
    assert_eq!(stetfs(&["cat", &other]).ok().len(), 3 << 20);
    assert_clean_at(&image, list[0].1);
    stetfs(&["rm", &other]).ok();
    // Its deleted blocks and its journal are still there.
    let mut after = outside(&image, start, size);
    let first = list[0].1 as usize..(list[0].1 + list[0].2) as usize;
    after[first.clone()].copy_from_slice(&before[first]);
    assert!(after == before, "bytes outside of the partition changed");
    assert!(
        run(&["recover", &image])
            .ok()
            .contains("nothing to recover")
    );
    assert_eq!(run(&["fsck", "-n", &image]).code, 0);
    run(&["journal", &image]).ok();
    assert_clean_at(&image, start);
    // What can be repeated clears the journal, of this volume alone.
    let same = format!("{image}?partition=6:/same");
    let repeatable = [
        "SOURCE_DATE_EPOCH=1",
        crate::run::STETFS,
        "cp",
        &content,
        &same,
    ];
    tool("env", &repeatable).ok();
    assert_clean_at(&image, start);
    // A journal that debugfs left there.
    let block = lab.str("block");
    fs::write(&block, [0x55; 4096]).unwrap();
    let script = lab.str("jobs");
    fs::write(&script, format!("jo\njw -b 3000 {block}\njc\n")).unwrap();
    let part = lab.str("part.img");
    let file = fs::File::open(&image).unwrap();
    let mut bytes = vec![0; size as usize];
    file.read_exact_at(&mut bytes, start).unwrap();
    fs::write(&part, &bytes).unwrap();
    tool("debugfs", &["-w", "-f", &script, &part]).ok();
    assert!(dumpe2fs(&part, "Filesystem features").contains("needs_recovery"));
    let file = fs::OpenOptions::new().write(true).open(&image).unwrap();
    file.write_all_at(&fs::read(&part).unwrap(), start).unwrap();
    let told = json(&run(&["recover", "--json", &image]).ok());
    assert_eq!(told["transactions"], 1);
    let mut home = [0; 4096];
    let file = fs::File::open(&image).unwrap();
    file.read_exact_at(&mut home, start + 3000 * 4096).unwrap();
    assert_eq!(home, [0x55; 4096]);
}

#[test]
fn a_volume_is_made_in_a_partition() {
    if !has("sfdisk") {
        return;
    }
    let lab = Lab::in_memory();
    let tree = lab.str("tree");
    fs::create_dir_all(format!("{tree}/dir")).unwrap();
    fs::write(format!("{tree}/dir/file"), vec![7; 2 << 20]).unwrap();
    let (image, list) = disk(&lab, GPT);
    let (_, start, size) = list[1];
    let before = outside(&image, start, size);
    let mkfs = |args: &[&str]| stetfs(&[&["mkfs", "--partition", "2", &image][..], args].concat());
    mkfs(&[]).fails(1, &["holds an ext4", "--force"]);
    mkfs(&["--force", "--size", "31M"]).fails(1, &["31 MiB is more than the part has (30 MiB)"]);
    stetfs(&["mkfs", "--partition", "4", &image]).fails(1, &["has no partition 4"]);
    stetfs(&["mkfs", &format!("{}?partition=1", lab.str("none"))]).fails(1, &["none"]);
    let part = format!("{image}?partition=2");
    // By us, filled; smaller than the partition; by mke2fs.
    let ways: [(&[&str], u64); 3] = [
        (&["--from", &tree], size),
        (&["--from", &tree, "--size", "20M", "-L", "small"], 20 * MIB),
        (&["--", "-O", "^metadata_csum", "-L", "theirs"], size),
    ];
    for (args, bytes) in ways {
        mkfs(&[&["--force"], args].concat()).ok();
        let told = json(&stetfs(&["info", "--json", &part]).ok());
        assert_eq!(told["size"], bytes / 4096 * 4096, "{told}");
        assert_clean_at(&image, start);
        assert!(outside(&image, start, size) == before, "{args:?}");
        if args[0] == "--from" {
            let diff = stetfs(&["diff", &part, &tree, "--ignore", "owner,times,mode"]);
            assert_eq!(
                diff.out,
                format!("only in {part}: lost+found (directory)\n")
            );
        } else {
            stetfs(&["cp", "-r", &tree, &format!("{part}:/")]).ok();
            assert_clean_at(&image, start);
        }
    }
    // Where nothing is; the copy of the table is at the end.
    let rest = format!("{image}?offset={}", 90 * MIB);
    stetfs(&["mkfs", &rest]).fails(1, &["partition table (GPT)"]);
    stetfs(&["mkfs", &format!("{rest}&size={}", 9 * MIB)]).ok();
    assert_clean_at(&image, 90 * MIB);
}

#[test]
fn a_damaged_gpt_is_read_from_its_copy() {
    if !has("sfdisk") {
        return;
    }
    let lab = Lab::in_memory();
    let (image, _) = disk(&lab, GPT);
    let file = fs::OpenOptions::new().write(true).open(&image).unwrap();
    file.write_all_at(&[0xff; 8], 512 + 72).unwrap();
    assert_eq!(
        stetfs(&["ls", "--partition", "1", &image]).ok(),
        "lost+found\n"
    );
    file.write_all_at(&[0xff; 8], 100 * MIB - 512 + 72).unwrap();
    let refused = stetfs(&["ls", "--partition", "1", &image]);
    refused.fails(1, &["a damaged partition table (GPT)"]);
    assert_eq!(
        stetfs(&["ls", "--offset", "1M", &image]).ok(),
        "lost+found\n"
    );
}

#[test]
fn wrong_parts_are_told() {
    if !has("sfdisk") {
        return;
    }
    let lab = Lab::in_memory();
    let (image, list) = disk(&lab, GPT);
    let at = |part: &[&str]| stetfs(&[&["info"], part, &[&image]].concat());
    at(&["--partition", "9"]).fails(1, &["has no partition 9", "\n     1 at byte 1048576"]);
    at(&["--partition", "0"]).fails(2, &["--partition"]);
    at(&["--partition", "1", "--offset", "1M"]).fails(2, &["cannot be used with"]);
    at(&["--offset", "1T"]).fails(1, &["ends before byte"]);
    at(&["--offset", "1000"]).fails(1, &["1000"]);
    let named = format!("{image}?partition=1");
    stetfs(&["info", "--partition", "1", &named]).fails(2, &["names a part already"]);
    let plain = Lab::new();
    let volume = plain.volume(&[]);
    stetfs(&["ls", "--partition", "1", &volume])
        .fails(1, &["no sound partition table", "an ext4 volume"]);
    // A disk that was cut off in the middle of a partition.
    let file = fs::OpenOptions::new().write(true).open(&image).unwrap();
    file.set_len(list[1].1 + MIB).unwrap();
    at(&["--partition", "2"]).fails(1, &["get all of it"]);
}

/// Two partitions are mounted side by side; what would overlap is refused, whoever has it.
#[test]
fn partitions_of_one_file_are_mounted_beside_each_other() {
    if !can() || !has("sfdisk") {
        return;
    }
    let lab = Lab::new();
    let (image, list) = disk(&lab, GPT);
    let first = Mount::up(&lab, &image, "first", "partition=1");
    let second = Mount::up(
        &lab,
        &format!("{image}?partition=2"),
        "second",
        "scheme=stet",
    );
    let says_why = |ran: crate::run::Ran| {
        assert_ne!(ran.code, 0, "{ran:#?}");
        assert!(ran.err.contains("is mounted on"), "{ran:#?}");
    };
    says_why(mount(&lab, &image, "third", "ro,partition=1"));
    says_why(mount(
        &lab,
        &image,
        "third",
        &format!("offset={}", list[1].1),
    ));
    says_why(mount(&lab, &image, "third", "ro"));
    says_why(stetfs(&["ls", "--partition", "2", &image]));
    says_why(stetfs(&["fsck", "--partition", "2", &image]));
    says_why(stetfs(&["mkfs", "--force", &image]));
    fs::write(lab.path("second/file"), "content").unwrap();
    fs::write(lab.path("first/file"), "other").unwrap();
    let listed = stetfs(&["mounts", "--json"]).ok();
    assert!(listed.contains("disk.img?partition=1"), "{listed}");
    stetfs(&["umount", "--timeout", "20", &second.0]).ok();
    assert_clean_at(&image, list[1].1);
    assert_eq!(
        stetfs(&["cat", &format!("{image}?partition=2:/file")]).ok(),
        "content"
    );
    stetfs(&["umount", "--timeout", "20", &first.0]).ok();
    for (_, start, _) in &list {
        assert_clean_at(&image, *start);
    }
}

/// Below the kernel's ext4, partitions are mounted side by side too, each with its scheme; and one
/// is a loop device.
#[test]
fn partitions_are_below_the_kernels_ext4() {
    let is_root = rustix::process::geteuid().is_root();
    if !can() || !is_root || !has("sfdisk") {
        return;
    }
    let lab = Lab::new();
    let (image, list) = disk(&lab, GPT);
    let options = "partition=1,front=kernel,scheme=stet,data=journal";
    let first = Mount::up(&lab, &image, "first", options);
    let second = format!("{image}?partition=2");
    let second = Mount::up(&lab, &second, "second", "front=kernel,scheme=jbd2");
    fs::write(lab.path("first/file"), "one").unwrap();
    fs::write(lab.path("second/file"), "two").unwrap();
    let again = mount(&lab, &image, "third", "partition=2");
    again.fails(1, &["is mounted on", "second"]);
    for (dir, scheme) in [(&first, "stet"), (&second, "jbd2")] {
        tool("sync", &["-f", &dir.0]).ok();
        assert_eq!(
            json(&stetfs(&["stats", "--json", &dir.0]).ok())["scheme"],
            scheme
        );
        stetfs(&["umount", "--timeout", "20", &dir.0]).ok();
    }
    let before = outside(&image, list[2].1, list[2].2);
    let words = ["below", "--partition", "3", "--as", "loop", &image];
    let device = stetfs(&words).ok();
    let dir = lab.str("third");
    tool("mount", &["-t", "ext4", device.trim(), &dir]).ok();
    fs::write(lab.path("third/file"), "three").unwrap();
    unmount(&dir);
    tool("losetup", &["-d", device.trim()]).ok();
    let content = |n: usize| stetfs(&["cat", &format!("{image}?partition={n}:/file")]);
    wait_until("the partition is released", || content(3).code == 0);
    assert_eq!(["one", "two", "three"], [1, 2, 3].map(|n| content(n).ok()));
    assert!(outside(&image, list[2].1, list[2].2) == before);
    for (_, start, _) in &list {
        assert_clean_at(&image, *start);
    }
}

/// What the kernel has mounted through a loop device is left alone; the other partitions are not.
#[test]
fn a_partition_that_the_kernel_has_is_in_use() {
    if !can() || !["sfdisk", "addpart"].into_iter().all(has) {
        return;
    }
    let lab = Lab::new();
    let (image, list) = disk(&lab, MBR);
    let disk = Loop::new(&image, &["-P"]);
    // Not every kernel reads the table itself.
    let is_there = |number| Path::new(&format!("{}p{number}", disk.0)).exists();
    for (number, start, size) in list[2..].iter().filter(|p| !is_there(p.0)) {
        let numbers = [number, &(start / 512), &(size / 512)].map(ToString::to_string);
        let [number, start, size] = &numbers;
        tool("addpart", &[&disk.0, number, start, size]).ok();
    }
    let node = format!("{}p6", disk.0);
    let dir = lab.str("kernel");
    fs::create_dir(&dir).unwrap();
    tool("mount", &["-t", "ext4", &node, &dir]).ok();
    let used = stetfs(&["ls", "--partition", "6", &image]);
    let info = stetfs(&["info", "--partition", "6", &image]).out;
    let other = stetfs(&["ls", "--partition", "5", &image]);
    // The disk's own name leads to the partition's device.
    let by_disk = stetfs(&["ls", "--partition", "5", &disk.0]);
    let by_node = stetfs(&["ls", "--partition", "6", &disk.0]);
    unmount(&dir);
    used.fails(1, &["is mounted on", &dir]);
    assert!(info.contains(&format!("mounted on {dir} (ext4)")), "{info}");
    assert_eq!(other.ok(), "lost+found\n");
    assert_eq!(by_disk.ok(), "lost+found\n");
    by_node.fails(1, &["is mounted on", &dir]);
    drop(disk);
    assert_clean_at(&image, list[3].1);
    // The kernel sees what we write.
    let file = format!("{image}?partition=6:/file");
    stetfs(&["cp", &lab.str("script"), &file]).ok();
    let window = format!("loop,ro,offset={},sizelimit={}", list[3].1, list[3].2);
    tool("mount", &["-t", "ext4", "-o", &window, &image, &dir]).ok();
    let read = fs::read_to_string(lab.path("kernel/file"));
    unmount(&dir);
    assert_eq!(read.unwrap(), MBR);
}
