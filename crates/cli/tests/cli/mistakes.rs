//! Mistakes of users: for each, the message, the exit code, and that no byte of anything has
//! changed.
//!
//! The programs that usually make such files make the fixtures (mke2fs, mkfs.xfs, ...); where a
//! magic number is enough, the test writes it. If such a program is not installed, the row is
//! skipped with a message. `{name}` in a row's arguments is the path of a fixture.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::run::{Lab, STETFS, assert_clean, debugfs_write, stetfs, tool};

/// Arguments, exit code, and words on standard error (on success: on standard output or error).
type Row = (&'static str, i32, &'static [&'static str]);

const MKFS: &[Row] = &[
    ("mkfs {notes.txt} --size 10M", 1, &["holds text", "--force"]),
    ("mkfs {disk.img}", 1, &["holds an ext4 volume", "--force"]),
    (
        "mkfs {xfs.img}",
        1,
        &["holds an XFS file system", "--force"],
    ),
    ("mkfs {btrfs.img}", 1, &["holds a Btrfs file system"]),
    ("mkfs {swap.img}", 1, &["holds swap space"]),
    (
        "mkfs {gpt.img}",
        1,
        &[
            "a partition table (GPT)",
            "1 at byte 1048576",
            "with an ext4 volume",
        ],
    ),
    (
        "mkfs {mbr.img}",
        1,
        &[
            "a partition table (MBR)",
            "2 at byte 1048576",
            "with an ext4 volume",
        ],
    ),
    ("mkfs {luks.img}", 1, &["an encrypted volume (LUKS)"]),
    ("mkfs {lvm.img}", 1, &["a physical volume of LVM"]),
    ("mkfs {fat.img}", 1, &["a FAT file system"]),
    ("mkfs {iso.img}", 1, &["an ISO 9660 image"]),
    ("mkfs {archive.tar} --size 10M", 1, &["a tar archive"]),
    ("mkfs {archive.gz} --size 10M", 1, &["compressed by gzip"]),
    ("mkfs {qcow2.img} --size 10M", 1, &["qcow2"]),
    (
        "mkfs {journal.img}",
        1,
        &["the journal of another ext4 volume"],
    ),
    (
        "mkfs {big.img}",
        1,
        &["an ext4 volume with blocks of 64 KiB"],
    ),
    (
        "mkfs {region} --size 10M",
        1,
        &["a region of persistent memory"],
    ),
    ("mkfs {late.img}", 1, &["holds data"]),
    ("mkfs {byte} --size 10M", 1, &["holds"]),
    (
        "mkfs {disk.img} --force -- -Z",
        1,
        &["invalid option", "mke2fs(8)"],
    ),
    (
        "mkfs {disk.img} --force -- -N 999999999",
        1,
        &["mke2fs could not make the volume"],
    ),
    (
        "mkfs {disk.img} --force --size 1M",
        1,
        &["too small", "8 MiB"],
    ),
    (
        "mkfs /dev/stetfs-nothing --size 10M",
        1,
        &["there is no such device"],
    ),
    ("mkfs {new} --size wide", 2, &["`wide` is not a size"]),
    ("mkfs {new}", 2, &["its size is not known", "--size"]),
    (
        "mkfs {new} --size 16M --block-size 8K",
        2,
        &["8192", "1K, 2K or 4K"],
    ),
    (
        "mkfs {new} --size 16M --label abcdefghijklmnopq",
        2,
        &["16 bytes"],
    ),
    ("mkfs {new} --size 16M --type btrfs", 2, &["ext4"]),
    (
        "mkfs {new}/below/it --size 16M",
        1,
        &["No such file or directory"],
    ),
    (
        "mkfs {dir} --size 16M",
        1,
        &["neither a file nor a block device"],
    ),
    (
        "mkfs {fifo} --size 16M",
        1,
        &["neither a file nor a block device"],
    ),
    (
        "mkfs {flash.nand} --size 1G",
        1,
        &["more than the device has"],
    ),
    ("mkfs", 2, &["Usage"]),
];

const NAND: &[Row] = &[
    (
        "nand create {notes.txt}",
        1,
        &["exists already, and holds text"],
    ),
    (
        "nand create {disk.img} --size 32M",
        1,
        &["exists already, and holds an ext4 volume"],
    ),
    (
        "nand create {dir}",
        1,
        &["neither a file nor an MTD device"],
    ),
    (
        "nand create /dev/mtd77",
        1,
        &["there is no such device", "MTD"],
    ),
    ("nand create {new} --size 1", 2, &["not a possible size"]),
    ("nand create {new} --over-provisioning 95", 1, &[]),
    (
        "nand info {notes.txt}",
        1,
        &["is not a NAND part: it holds text"],
    ),
    (
        "nand check {disk.img}",
        1,
        &["is not a NAND part: it holds an ext4 volume"],
    ),
    ("nand wear {new}", 1, &["No such file"]),
];

const MOUNT: &[Row] = &[
    ("mount {new} {dir}", 1, &["No such file or directory"]),
    (
        "mount {disk.img} {dir}/none",
        1,
        &["there is no such directory", "mkdir"],
    ),
    ("mount {disk.img} {notes.txt}", 1, &["is not a directory"]),
    ("mount {disk.img}", 2, &["Usage"]),
    (
        "mount -o frobnicate {disk.img} {dir}",
        2,
        &["unknown mount option \"frobnicate\"", "mount --help"],
    ),
    (
        "mount -o scheme=jdb2 {disk.img} {dir}",
        2,
        &["no journaling scheme is called \"jdb2\"", "stetfs schemes"],
    ),
    (
        "mount -o scheme=jftl {disk.img} {dir}",
        1,
        &["needs a device that remaps"],
    ),
    (
        "mount -o scheme=shortcut,durability=process,variant=best {disk.img} {dir}",
        2,
        &["variant=best", "blk"],
    ),
    (
        "mount -o variant=adp-s {disk.img} {dir}",
        2,
        &["scheme jbd2: it has no option \"variant\""],
    ),
    (
        "mount -o journal_async_commit=maybe {disk.img} {dir}",
        2,
        &["on or off"],
    ),
    (
        "mount -o data=everything {disk.img} {dir}",
        2,
        &["scheme jbd2 has no mode data=everything"],
    ),
    (
        "mount -o scheme=shortcut,durability=process,data=ordered {disk.img} {dir}",
        2,
        &["no mode data=ordered"],
    ),
    (
        "mount -o scheme=null,data=journal {disk.img} {dir}",
        2,
        &["no mode data=journal"],
    ),
    (
        "mount -o commit=soon {disk.img} {dir}",
        2,
        &["a number of seconds"],
    ),
    ("mount -o memory=1 {disk.img} {dir}", 2, &["at least 8M"]),
    (
        "mount -o errors=explode {disk.img} {dir}",
        2,
        &["continue, remount-ro or panic"],
    ),
    ("mount -o scheme=dj {disk.img} {dir}", 1, &["nvm=FILE"]),
    (
        "mount -o scheme=ubj,keep-cache=perhaps {disk.img} {dir}",
        2,
        &["on or off"],
    ),
    (
        "mount {notes.txt} {dir}",
        1,
        &["it holds text; no ext4 volume"],
    ),
    (
        "mount {empty} {dir}",
        1,
        &["no volume: it is empty", "stetfs mkfs"],
    ),
    (
        "mount {zeros.img} {dir}",
        1,
        &["no volume: 1 MiB of zeros", "stetfs mkfs"],
    ),
    (
        "mount {xfs.img} {dir}",
        1,
        &["it holds an XFS file system; no ext4 volume"],
    ),
    (
        "mount {btrfs.img} {dir}",
        1,
        &["it holds a Btrfs file system; no ext4 volume"],
    ),
    (
        "mount {gpt.img} {dir}",
        1,
        &["partition table (GPT)", "--partition 1"],
    ),
    (
        "mount {mbr.img} {dir}",
        1,
        &["a partition table", "--partition 2"],
    ),
    (
        "mount {journal.img} {dir}",
        1,
        &[
            "the journal of another ext4 volume",
            "name the volume itself",
        ],
    ),
    (
        "mount {big.img} {dir}",
        1,
        &["blocks of 64 KiB", "1, 2 and 4 KiB are supported"],
    ),
    (
        "mount {region} {dir}",
        1,
        &["a region of persistent memory", "-o nvm=FILE"],
    ),
    (
        "mount {late.img} {dir}",
        1,
        &["its content is unknown", "stetfs fsck"],
    ),
    (
        "mount {short.img} {dir}",
        1,
        &[
            "6291456 are missing at its end",
            "a repair would throw away",
        ],
    ),
    (
        "mount -o ro {short.img} {dir}",
        1,
        &["6291456 are missing at its end"],
    ),
    (
        "mount {ext2.img} {dir}",
        1,
        &[
            "has no journal (it is ext2",
            "-o ro",
            "scheme=null",
            "tune2fs -j",
        ],
    ),
    (
        "mount {plain.img} {dir}",
        1,
        &["has no journal", "-o ro", "scheme=null"],
    ),
    ("mount {encrypt.img} {dir}", 1, &["encrypt"]),
    (
        "mount {damaged.img} {dir}",
        1,
        &["checksum", "stetfs fsck -n"],
    ),
    (
        "mount {rootless.img} {dir}",
        1,
        &["root inode", "stetfs fsck"],
    ),
    ("mount {fifo} {dir}", 1, &["pipe, not a regular file"]),
    ("mount {dir} {dir}", 1, &["directory, not a regular file"]),
    (
        "mount {flash.nand} {dir}",
        1,
        &["no volume on this NAND part", "stetfs mkfs"],
    ),
];

const LOOK: &[Row] = &[
    ("info {notes.txt}", 1, &["it holds text; no ext4 volume"]),
    ("info {empty}", 1, &["no volume: it is empty"]),
    ("info {xfs.img}", 1, &["an XFS file system"]),
    ("info {gpt.img}", 1, &["a partition table", "--partition 1"]),
    ("info {big.img}", 1, &["blocks of 64 KiB"]),
    ("info /dev/null", 1, &["character device"]),
    ("info {new}", 1, &["No such file"]),
    ("info {short.img}", 0, &["truncated", "6 MiB are missing"]),
    ("info {dirty.img}", 0, &["needs recovery"]),
    ("info {ext2.img}", 0, &["an ext2 volume", "-o scheme=null"]),
    ("journal {plain.img}", 1, &["has no journal", "tune2fs -j"]),
    ("journal {notes.txt}", 1, &["it holds text"]),
    ("stats {dir}", 1, &["not on a mounted stetfs volume"]),
    ("stats", 2, &["Usage"]),
    (
        "stats --watch {dir}",
        1,
        &["not on a mounted stetfs volume"],
    ),
    ("stats --watch often {dir}", 2, &["not a number of seconds"]),
    ("stats --watch 0 {dir}", 2, &["at least 0.01"]),
    ("stats --from {notes.txt}", 1, &["the counters"]),
    ("ls {notes.txt}", 1, &["it holds text"]),
    (
        "ls {dirty.img}",
        0,
        &["in memory only, nothing is written", "lost+found"],
    ),
    ("ls {disk.img}:/nothing", 1, &["no such file or directory"]),
    ("ls {mounted-by-nobody}", 1, &["No such file"]),
    ("cat {dirty.img}:/hello", 0, &["hello from before"]),
    ("cat {disk.img}:/", 1, &["is a directory"]),
    ("cat {notes.txt}", 2, &["not a place in an image"]),
    ("cat {disk.img}:/nothing", 1, &["no such file or directory"]),
];

const CHANGE: &[Row] = &[
    ("cp {notes.txt} {disk.img}:/no/where", 1, &["no"]),
    ("cp {new} {disk.img}:/", 1, &["no such file"]),
    ("cp {disk.img}:/nothing {dir}", 1, &["no such file"]),
    ("cp {dir} {disk.img}:/", 1, &["-r"]),
    ("cp {notes.txt}", 2, &["Usage"]),
    ("cp {notes.txt} {ext2.img}:/", 0, &[]),
    (
        "cp {notes.txt} {short.img}:/",
        1,
        &["are missing at its end"],
    ),
    ("cp {notes.txt} {xfs.img}:/", 1, &["an XFS file system"]),
    ("rm {disk.img}:/nothing", 1, &["no such file"]),
    ("rm {disk.img}:/lost+found", 1, &["-r"]),
    ("rm {notes.txt}", 2, &["not a place in an image"]),
    ("mkdir {disk.img}:/lost+found", 1, &["exists"]),
    ("mkdir {disk.img}:/a/b", 1, &["no such file"]),
    ("mkdir --mode 9 {disk.img}:/x", 2, &["octal"]),
    ("fsck {new}", 8, &["no such file or device"]),
    (
        "fsck {short.img}",
        8,
        &["6 MiB of the volume are missing at its end"],
    ),
    ("fsck --sideways {disk.img}", 16, &["--sideways"]),
    ("fsck -n -y {disk.img}", 16, &["cannot be used with"]),
    ("drain {notes.txt}", 1, &["notes.txt"]),
    ("umount {dir}", 1, &["no stetfs volume is mounted there"]),
    ("umount {new}", 1, &["no stetfs volume is mounted there"]),
    ("schemes jbd2", 2, &["unexpected argument"]),
    ("frobnicate", 2, &["unrecognized subcommand"]),
    ("info", 2, &["Usage"]),
];

/// True if the command opens what it is given for writing before it finds the mistake. That counts
/// as a mount: of a volume, for commands that work on files; of a NAND part's layer, for all. The
/// content stays; e2fsck checks that.
fn may_note_a_mount(row: &str, name: &str) -> bool {
    let works_on_files = ["cp ", "rm ", "mkdir "].iter().any(|c| row.starts_with(c));
    name == "flash.nand" || works_on_files && ["disk.img", "ext2.img"].contains(&name)
}

struct Fixtures {
    lab: Lab,
    /// For each missing fixture, why it is missing.
    missing: BTreeMap<&'static str, &'static str>,
}

impl Fixtures {
    fn new() -> Self {
        let mut made = Self {
            lab: Lab::new(),
            missing: BTreeMap::new(),
        };
        made.by_hand();
        made.by_mke2fs();
        made.by_others();
        made
    }

    fn str(&self, name: &str) -> String {
        self.lab.str(name)
    }

    /// Makes a file of zeros with these bytes in it.
    fn raw(&self, name: &str, size: u64, bytes: &[(u64, &[u8])]) {
        let file = fs::File::create(self.lab.path(name)).unwrap();
        file.set_len(size).unwrap();
        for (at, bytes) in bytes {
            file.write_all_at(bytes, *at).unwrap();
        }
    }

    fn by_hand(&self) {
        const MIB: u64 = 1 << 20;
        fs::create_dir(self.lab.path("dir")).unwrap();
        fs::write(self.lab.path("notes.txt"), "milk, eggs, bread\n").unwrap();
        fs::write(self.lab.path("byte"), [7]).unwrap();
        self.raw("empty", 0, &[]);
        self.raw("zeros.img", MIB, &[]);
        self.raw("late.img", 16 * MIB, &[(9 * MIB, b"\x01\x02")]);
        self.raw("luks.img", 16 * MIB, &[(0, b"LUKS\xba\xbe\0\x02")]);
        self.raw(
            "lvm.img",
            16 * MIB,
            &[(512, b"LABELONE"), (536, b"LVM2 001")],
        );
        self.raw(
            "fat.img",
            16 * MIB,
            &[(54, b"FAT16   "), (510, b"\x55\xaa")],
        );
        self.raw("iso.img", 16 * MIB, &[(0x8001, b"CD001")]);
        self.raw(
            "archive.tar",
            10_240,
            &[(0, b"notes"), (257, b"ustar\x0000")],
        );
        self.raw("archive.gz", 100, &[(0, b"\x1f\x8b\x08")]);
        self.raw("qcow2.img", 1024, &[(0, b"QFI\xfb\0\0\0\x03")]);
        self.raw("region", 4096, &[(0, b"stetLOG\0\x01")]);
        tool("mkfifo", &[&self.str("fifo")]).ok();
        stetfs(&["nand", "create", &self.str("flash.nand"), "--size", "32M"]).ok();
    }

    fn mke2fs(&self, name: &str, args: &[&str], size: &str) {
        let path = self.str(name);
        let mut all = vec!["-q", "-F"];
        all.extend(args);
        all.extend([path.as_str(), size]);
        tool("mke2fs", &all).ok();
    }

    fn by_mke2fs(&self) {
        let ext4 = ["-t", "ext4", "-b", "4096"];
        self.mke2fs("disk.img", &ext4, "16M");
        self.mke2fs("ext2.img", &["-t", "ext2"], "16M");
        self.mke2fs("plain.img", &["-t", "ext4", "-O", "^has_journal"], "16M");
        self.mke2fs("encrypt.img", &["-t", "ext4", "-O", "encrypt"], "16M");
        self.mke2fs("journal.img", &["-O", "journal_dev", "-b", "4096"], "16M");
        self.mke2fs("big.img", &["-t", "ext4", "-b", "65536"], "64M");
        for name in ["short.img", "damaged.img", "rootless.img", "dirty.img"] {
            fs::copy(self.lab.path("disk.img"), self.lab.path(name)).unwrap();
        }
        let open = |name: &str| {
            fs::File::options()
                .write(true)
                .open(self.lab.path(name))
                .unwrap()
        };
        open("short.img").set_len(10 << 20).unwrap();
        // Change s_inode_size, and leave the checksum as it was.
        open("damaged.img")
            .write_all_at(&[0x55; 2], 1024 + 0x58)
            .unwrap();
        debugfs_write(&self.str("rootless.img"), &["sif <2> mode 0100644"]);
        let hello = self.str("hello");
        fs::write(&hello, "hello from before").unwrap();
        // A transaction that is only in the log: zeros in a free block.
        let block = self.str("block");
        fs::write(&block, [0; 4096]).unwrap();
        let words = [
            format!("write {hello} hello"),
            "jo".to_owned(),
            format!("jw -b 4000 {block}"),
            "jc".to_owned(),
        ];
        debugfs_write(
            &self.str("dirty.img"),
            &words.each_ref().map(String::as_str),
        );
        let volume = fs::read(self.lab.path("disk.img")).unwrap();
        let sectors = (volume.len() / 512) as u32;
        let mut entry = [0; 16];
        entry[4] = 0x83;
        entry[8..12].copy_from_slice(&2048u32.to_le_bytes());
        entry[12..].copy_from_slice(&sectors.to_le_bytes());
        let at = 2048 * 512;
        self.raw(
            "mbr.img",
            20 << 20,
            &[(462, &entry), (510, b"\x55\xaa"), (at, &volume)],
        );
        let mut entries = vec![0; 128 * 128];
        entries[..16].fill(0xaf);
        entries[32..40].copy_from_slice(&2048u64.to_le_bytes());
        entries[40..48].copy_from_slice(&(2048 + u64::from(sectors) - 1).to_le_bytes());
        let mut header = b"EFI PART\0\0\x01\0\x5c\0\0\0".to_vec();
        header.resize(92, 0);
        let mut put = |at: usize, number: u64, len: usize| {
            header[at..at + len].copy_from_slice(&number.to_le_bytes()[..len]);
        };
        put(24, 1, 8);
        put(72, 2, 8);
        put(80, 128, 4);
        put(84, 128, 4);
        put(88, crc32(&entries).into(), 4);
        let sum = crc32(&header);
        header[16..20].copy_from_slice(&sum.to_le_bytes());
        self.raw(
            "gpt.img",
            20 << 20,
            &[(512, &header), (1024, &entries), (at, &volume)],
        );
    }

    fn by_others(&mut self) {
        let mut make = |name: &'static str, size: u64, program: &'static str, args: &[&str]| {
            if tool("sh", &["-c", &format!("command -v {program}")]).code != 0 {
                self.missing.insert(name, program);
                return;
            }
            let path = self.lab.str(name);
            fs::File::create(&path).unwrap().set_len(size).unwrap();
            let mut all = args.to_vec();
            all.push(&path);
            tool(program, &all).ok();
        };
        make("xfs.img", 320 << 20, "mkfs.xfs", &["-q"]);
        make("btrfs.img", 128 << 20, "mkfs.btrfs", &["-q"]);
        make("swap.img", 16 << 20, "mkswap", &["-q"]);
    }

    /// Returns the arguments, with paths in place of names.
    fn arguments(&self, row: &str) -> Vec<String> {
        let path = |word: &str| match word.strip_prefix('{').and_then(|w| w.split_once('}')) {
            Some((name, rest)) => format!("{}{rest}", self.str(name)),
            None => word.to_owned(),
        };
        row.split_whitespace().map(path).collect()
    }

    /// Returns the first missing fixture of a row.
    fn is_without(&self, row: &str) -> Option<&str> {
        let named = |name: &&str| row.contains(&format!("{{{name}}}"));
        self.missing.keys().copied().find(named)
    }

    /// Returns the content of everything that a row names, and all names.
    fn state(&self, row: &str) -> BTreeMap<String, Vec<u8>> {
        let entries = fs::read_dir(self.lab.path("")).unwrap();
        let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
        names
            .map(|name| {
                let is_named = row.contains(&format!("{{{name}}}"));
                let is_file = is_named && name != "dir" && name != "fifo";
                let content = (is_file && !may_note_a_mount(row, &name))
                    .then(|| fs::read(self.lab.path(&name)).unwrap());
                (name, content.unwrap_or_default())
            })
            .collect()
    }

    /// Returns what is wrong with the answer to a mistake; None if it is right.
    fn answer(&self, &(row, code, words): &Row) -> Option<String> {
        if let Some(name) = self.is_without(row) {
            eprintln!("SKIPPED: {row}: {} is not installed", self.missing[name]);
            return None;
        }
        let before = self.state(row);
        let ran = stetfs(&self.arguments(row));
        if row.starts_with("mount") && ran.code == 0 {
            stetfs(&["umount", &self.str("dir")]).ok();
        }
        let after = self.state(row);
        let mut wrong = Vec::new();
        if ran.code != code {
            wrong.push(format!("exit code {} and not {code}", ran.code));
        }
        let said = match code {
            0 => format!("{}{}", ran.out, ran.err),
            _ => ran.err.clone(),
        };
        wrong.extend(
            words
                .iter()
                .filter(|w| !said.contains(**w))
                .map(|w| format!("no {w:?}")),
        );
        for never in ["panicked", "dmesg"] {
            if said.contains(never) {
                wrong.push(format!("{never:?} in it"));
            }
        }
        if before != after {
            let differs = |name: &&String| before.get(*name) != after.get(*name);
            let names: Vec<&String> = before.keys().chain(after.keys()).filter(differs).collect();
            wrong.push(format!("changed: {names:?}"));
        }
        (!wrong.is_empty())
            .then(|| format!("stetfs {row}\n  {}\n  it said: {said}", wrong.join("\n  ")))
    }
}

fn check(rows: &[Row]) {
    let fixtures = Fixtures::new();
    let wrong: Vec<String> = rows.iter().filter_map(|row| fixtures.answer(row)).collect();
    for volume in ["disk.img", "ext2.img"] {
        assert_clean(fixtures.str(volume));
    }
    let (n, of) = (wrong.len(), rows.len());
    assert!(
        wrong.is_empty(),
        "{n} of {of} mistakes ({STETFS}):\n\n{}",
        wrong.join("\n")
    );
    assert!(!Path::new("/dev/stetfs-nothing").exists() && !Path::new("/dev/mtd77").exists());
}

#[test]
fn in_making_a_volume() {
    check(MKFS);
}

#[test]
fn in_making_a_part() {
    check(NAND);
}

#[test]
fn in_mounting() {
    check(MOUNT);
}

#[test]
fn in_looking() {
    check(LOOK);
}

#[test]
fn in_changing() {
    check(CHANGE);
}

/// The checksum of a GPT, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |sum: u32| sum >> 1 ^ (0xedb8_8320 & (sum & 1).wrapping_neg());
    let mix = |sum: u32, byte: &u8| (0..8).fold(sum ^ u32::from(*byte), |sum, _| step(sum));
    !bytes.iter().fold(!0, mix)
}
