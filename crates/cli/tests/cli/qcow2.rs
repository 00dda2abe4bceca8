//! Volumes on disks in the format qcow2: made by qemu-img and judged by it, by e2fsck, and by what
//! the same commands say of the raw disk.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use crate::mounted::can_mount;
use crate::partition::{GPT, disk};
use crate::run::{Lab, Random, has, json, stetfs, tool, unmount, wait_until};

/// A disk with partitions and some files in the second one. `None`: a tool is missing.
fn raw(lab: &Lab) -> Option<String> {
    if !has("sfdisk") || !has("qemu-img") || !has("qemu-io") {
        return None;
    }
    let (image, _) = disk(lab, GPT);
    let mut random = Random(1);
    fs::create_dir_all(lab.path("tree/a/b")).unwrap();
    for (name, len) in [("empty", 0), ("a/short", 10), ("a/b/long", 3 << 20)] {
        let bytes: Vec<u8> = (0..len).map(|_| random.below(7) as u8).collect();
        fs::write(lab.path("tree").join(name), bytes).unwrap();
    }
    let to = format!("{image}?partition=2:/");
    stetfs(&["cp", "-rq", &lab.str("tree/."), &to]).ok();
    Some(image)
}

fn convert(lab: &Lab, image: &str, name: &str, how: &[&str]) -> String {
    let disk = lab.str(name);
    let args = [&["convert", "-O", "qcow2"], how, &[image, &disk]].concat();
    tool("qemu-img", &args).ok();
    disk
}

#[test]
fn a_qcow2_disk_reads_as_the_raw_one() {
    let lab = Lab::in_memory();
    let Some(image) = raw(&lab) else { return };
    let archive = |image: &str, name: &str| {
        let to = lab.str(name);
        stetfs(&["tar", "-c", "-f", &to, "--partition", "2", image]).ok();
        fs::read(to).unwrap()
    };
    let expected = archive(&image, "raw.tar");
    assert!(expected.len() > 3 << 20);
    for (n, (how, refused)) in [
        (&[][..], None),
        (&["-c"], None),
        (&["-o", "compat=0.10"], None),
        (&["-o", "cluster_size=512"], None),
        (
            &["-o", "extended_l2=on,cluster_size=128k"],
            Some("extended L2"),
        ),
        (&["-c", "-o", "compression_type=zstd"], Some("compression")),
    ]
    .into_iter()
    .enumerate()
    {
        let disk = convert(&lab, &image, &format!("{n}.qcow2"), how);
        let before = fs::read(&disk).unwrap();
        if let Some(why) = refused {
            stetfs(&["ls", &format!("{disk}?partition=2:/")]).fails(1, &["qcow2", why]);
            continue;
        }
        assert!(archive(&disk, "qcow2.tar") == expected, "{how:?}");
        stetfs(&["ls", &disk]).fails(1, &["--partition 1", "with an ext4"]);
        for command in ["info", "journal"] {
            let of = |image| {
                let told = stetfs(&[command, "--json", "--partition", "2", image]).ok();
                let mut told = json(&told);
                told.as_object_mut().unwrap().remove("image");
                told
            };
            assert_eq!(of(&disk), of(&image), "{how:?}");
        }
        stetfs(&["fsck", "-n", "--partition", "3", &disk]).ok();
        assert!(fs::read(&disk).unwrap() == before, "{how:?}");
    }
}

/// A volume that fills the disk, with a journal to be recovered: in memory, since nothing is
/// written.
#[test]
fn a_qcow2_disk_is_mounted_read_only() {
    let lab = Lab::in_memory();
    let Some(parts) = raw(&lab).filter(|_| can_mount()) else {
        return;
    };
    let image = lab.volume_named("volume", &[]);
    let dir = lab.str("mnt");
    fs::create_dir(&dir).unwrap();
    stetfs(&["mount", "-q", "-o", "auto_unmount", &image, &dir]).ok();
    fs::write(lab.path("mnt/file"), "text").unwrap();
    tool("sync", &[&lab.str("mnt/file")]).ok();
    // Still mounted: a copy as after a power cut.
    let disk = convert(&lab, &image, "dirty.qcow2", &["-c", "-U"]);
    unmount(&dir);
    let before = fs::read(&disk).unwrap();
    assert_eq!(stetfs(&["cat", &format!("{disk}:/file")]).ok(), "text");
    stetfs(&["mount", "-q", &disk, &dir]).ok();
    assert_eq!(fs::read(lab.path("mnt/file")).unwrap(), b"text");
    let refused = fs::write(lab.path("mnt/new"), "").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    // A virtual machine does not get it meanwhile.
    let machine = |disk: &str| tool("qemu-io", &["-c", "write 0 512", disk]);
    machine(&disk).fails(1, &["lock"]);
    unmount(&dir);
    assert!(fs::read(&disk).unwrap() == before);
    let parts = convert(&lab, &parts, "parts.qcow2", &[]);
    stetfs(&["mount", "-q", "--partition", "2", &parts, &dir]).ok();
    assert_eq!(fs::read(lab.path("mnt/a/short")).unwrap().len(), 10);
    machine(&parts).fails(1, &["lock"]);
    unmount(&dir);
    wait_until("it is let go", || machine(&parts).code == 0);
}

#[test]
fn a_disk_that_a_machine_uses_is_busy() {
    let lab = Lab::in_memory();
    let Some(image) = raw(&lab) else { return };
    let disk = convert(&lab, &image, "disk.qcow2", &[]);
    let mut machine = Command::new("qemu-io")
        .arg(&disk)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // It asks for a command once it has the disk. Whoever looked earlier might keep it from that.
    let mut prompt = [0; 8];
    let mut stdout = machine.stdout.take().unwrap();
    stdout.read_exact(&mut prompt).unwrap();
    assert_eq!(&prompt, b"qemu-io>");
    let list = || stetfs(&["ls", &format!("{disk}?partition=2:/")]);
    list().fails(1, &["in use", "virtual machine"]);
    let mut stdin = machine.stdin.take().unwrap();
    stdin.write_all(b"quit\n").unwrap();
    assert!(machine.wait().unwrap().success());
    list().ok();
}

#[test]
fn nothing_is_written_to_a_qcow2_disk() {
    let lab = Lab::in_memory();
    let Some(image) = raw(&lab) else { return };
    let disk = convert(&lab, &image, "disk.qcow2", &[]);
    let before = fs::read(&disk).unwrap();
    let part = format!("{disk}?partition=2");
    let here = lab.str("script");
    for command in [
        &["cp", &here, &format!("{part}:/")][..],
        &["rm", &format!("{part}:/empty")],
        &["recover", &part],
        &["fsck", "-y", &part],
        &["shrink", &part],
        &["mkfs", "--force", &part],
        &["mkfs", "--force", &disk],
    ] {
        let ran = stetfs(command);
        assert!(ran.code != 0, "{ran:#?}");
        assert!(ran.err.contains("qemu-img convert"), "{ran:#?}");
    }
    assert!(fs::read(&disk).unwrap() == before);
}

/// What a disk refers to is not opened, however it is named.
#[test]
fn nothing_else_is_opened() {
    let lab = Lab::in_memory();
    let Some(image) = raw(&lab) else { return };
    let over = lab.str("over.qcow2");
    let args = [
        "create", "-q", "-f", "qcow2", "-F", "raw", "-b", &image, &over,
    ];
    tool("qemu-img", &args).ok();
    let list = |disk: &str| stetfs(&["ls", &format!("{disk}?partition=2:/")]);
    list(&over).fails(
        1,
        &["Backing file", &format!("{image} is not opened"), "convert"],
    );
    let data = format!("data_file={},data_file_raw=on", lab.str("data"));
    let apart = convert(&lab, &image, "apart.qcow2", &["-o", &data]);
    list(&apart).fails(1, &[&format!("{} is not opened", lab.str("data"))]);
}

#[test]
fn a_damaged_disk_is_an_error() {
    let lab = Lab::in_memory();
    let Some(image) = raw(&lab) else { return };
    for (name, how) in [("plain", &[][..]), ("packed", &["-c"])] {
        let disk = convert(&lab, &image, name, how);
        let bytes = fs::read(&disk).unwrap();
        let file = fs::File::options().write(true).open(&disk).unwrap();
        let mut random = Random(2);
        for round in 0..60 {
            // The header, or anything up to the first tables.
            let end = if round % 2 == 0 { 112 } else { 0x5_0000 };
            let at = 4 + random.below(end - 4);
            let bit = 1 << random.below(8);
            file.write_all_at(&[bytes[at as usize] ^ bit], at).unwrap();
            let ran = stetfs(&["tar", "-c", "-f", "/dev/null", "--partition", "2", &disk]);
            assert!(
                [0, 1].contains(&ran.code),
                "bit {bit} of byte {at}: {ran:#?}"
            );
            assert!(
                !ran.err.contains("panicked"),
                "bit {bit} of byte {at}: {ran:#?}"
            );
            file.write_all_at(&bytes[at as usize..][..1], at).unwrap();
        }
    }
}
