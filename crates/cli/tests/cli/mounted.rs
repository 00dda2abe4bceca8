//! mount, umount, stats and the helpers, on a real FUSE mount. Skipped with a message if there is
//! no FUSE.

use std::ffi::OsStr;
use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, symlink};
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use crate::run::{
    Lab, Ran, STETFS, assert_clean, debugfs, has, json, sha256, stetfs, tool, wait_until,
};
use crate::twice::is_locked;

/// True if FUSE mounts can be made here.
pub(crate) fn can_mount() -> bool {
    let device = fs::metadata("/dev/fuse").map(|m| m.file_type().is_char_device());
    let has_helper = || tool("sh", &["-c", "command -v fusermount3"]).code == 0;
    let can = matches!(device, Ok(true)) && (rustix::process::geteuid().is_root() || has_helper());
    if !can {
        eprintln!("SKIPPED: no FUSE mounts here ({device:?})");
    }
    can
}

/// A volume and a mount point; dropping it unmounts, however the test ends.
pub(crate) struct Mount {
    pub(crate) lab: Lab,
    pub(crate) image: String,
    pub(crate) dir: String,
}

impl Mount {
    pub(crate) fn new() -> Self {
        let lab = Lab::new();
        let image = lab.volume(&["-L", "mounted"]);
        Self::of(lab, image)
    }

    /// On a simulated NAND part.
    fn on_flash() -> Self {
        let lab = Lab::new();
        let image = lab.str("flash.nand");
        stetfs(&["nand", "create", &image, "--size", "32M"]).ok();
        stetfs(&["mkfs", &image]).ok();
        Self::of(lab, image)
    }

    pub(crate) fn of(lab: Lab, image: String) -> Self {
        let dir = lab.str("mnt");
        fs::create_dir(&dir).unwrap();
        Self { lab, image, dir }
    }

    #[track_caller]
    pub(crate) fn up(&self, args: &[&str]) -> String {
        let mut all = vec!["mount"];
        all.extend(args);
        all.extend([self.image.as_str(), self.dir.as_str()]);
        let ran = stetfs(&all);
        assert_eq!(ran.code, 0, "{ran:#?}");
        assert!(self.is_mounted());
        ran.err
    }

    /// Runs the helper of mount(8) or umount(8), by its name.
    pub(crate) fn helper(&self, name: &str, args: &[&str]) -> Ran {
        helper(&self.lab, name, args)
    }

    pub(crate) fn is_mounted(&self) -> bool {
        let list = String::from_utf8_lossy(&fs::read("/proc/self/mountinfo").unwrap()).into_owned();
        let is_ours = |l: &str| l.contains(" - fuse.stetfs ") || l.contains(" - fuseblk.stetfs ");
        list.lines()
            .any(|l| l.contains(&format!(" {} ", self.dir)) && is_ours(l))
    }

    #[track_caller]
    pub(crate) fn down(&self) {
        stetfs(&["umount", &self.dir]).ok();
        assert!(!self.is_mounted());
        // Another test may have begun a namespace just then, which has the mount too.
        wait_until("the image is free", || !is_locked(&self.image));
        assert_clean(&self.image);
    }

    pub(crate) fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.dir)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.is_mounted() {
            stetfs(&["umount", "--lazy", &self.dir]);
        }
    }
}

#[test]
fn mount_write_unmount() {
    if !can_mount() {
        return;
    }
    let m = Mount::new();
    let said = m.up(&["-o", "data=journal"]);
    assert!(
        said.contains("read-write, scheme jbd2, data=journal"),
        "{said}"
    );
    fs::write(m.file("file"), "through the mount").unwrap();
    let info = json(&stetfs(&["info", "--json", &m.image]).ok());
    assert_eq!(
        (&info["state"], &info["mounted"]["dir"]),
        (&"mounted".into(), &m.dir.as_str().into())
    );
    m.down();
    assert_eq!(debugfs(&m.image, "cat /file"), "through the mount");
    assert_eq!(
        json(&stetfs(&["info", "--json", &m.image]).ok())["state"],
        "clean"
    );
}

#[test]
fn a_part_is_mounted_and_blocks_are_remapped_home() {
    if !can_mount() {
        return;
    }
    let m = Mount::on_flash();
    let said = m.up(&["-o", "scheme=jftl,durability=process"]);
    assert!(
        said.contains("scheme jftl, data=journal, survives the death"),
        "{said}"
    );
    let text = fs::read("src/main.rs").unwrap();
    for n in 0..100 {
        fs::write(m.file(&format!("file{n}")), &text).unwrap();
    }
    stetfs(&["info", &m.image]).fails(1, &["in use"]);
    stetfs(&["umount", &m.dir]).ok();
    stetfs(&["fsck", "-n", &m.image]).ok();
    let layer = json(&stetfs(&["nand", "info", "--json", &m.image]).ok())["layer"].clone();
    let [written, remapped] = ["host_pages", "remapped_pages"].map(|n| layer[n].as_u64().unwrap());
    let pages = (100 * text.len() / 512) as u64;
    assert!(
        remapped > pages && written < 2 * remapped,
        "written once, remapped home: {layer}"
    );
}

/// Every line of Prometheus's format is a comment or a sample of the metric that the comments
/// before it name, and the samples are the counters of the JSON.
#[test]
fn a_monitoring_system_gets_the_counters() {
    if !can_mount() {
        return;
    }
    let lab = Lab::new();
    let image = lab.str("a \"quoted\\ name");
    stetfs(&["mkfs", "--size", "32M", &image]).ok();
    let m = Mount::of(lab, image);
    let nvm = m.lab.str("nvm");
    let options = format!("scheme=tinca,durability=process,nvm={nvm}");
    m.up(&["-o", &options]);
    fs::write(m.file("file"), vec![1; 100_000]).unwrap();
    fs::File::open(m.file("file")).unwrap().sync_all().unwrap();
    let counters = stetfs(&["stats", "--json", &m.dir]).ok();
    let kept = m.lab.str("counters");
    fs::write(&kept, &counters).unwrap();
    let text = stetfs(&["stats", "--prometheus", "--from", &kept]).ok();
    let mut metric = "";
    let mut sums = std::collections::BTreeMap::new();
    for line in text.lines() {
        if let Some(comment) = line.strip_prefix("# HELP ") {
            metric = comment.split(' ').next().unwrap();
            continue;
        }
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let grows = metric.ends_with("_total");
            let kind_is = if grows { "counter" } else { "gauge" };
            assert_eq!(kind, format!("{metric} {kind_is}"));
            continue;
        }
        let (name, rest) = line.split_once('{').unwrap();
        let (labels, value) = rest.rsplit_once("} ").unwrap();
        assert_eq!(name, metric, "{line}");
        assert!(labels.contains(&format!("dir=\"{}\"", m.dir)), "{line}");
        *sums.entry(name).or_insert(0.0) += value.parse::<f64>().unwrap();
    }
    let json = json(&counters);
    let all = |medium: &serde_json::Value, key: &str| {
        let rows = medium["traffic"].as_array().unwrap().iter();
        rows.map(|row| row[key].as_u64().unwrap_or(0)).sum::<u64>() as f64
    };
    let (device, memory) = (&json["device"], &json["nvm"]["traffic"]);
    for (name, right) in [
        (
            "written_bytes_total",
            all(device, "write_bytes") + all(memory, "write_bytes"),
        ),
        ("lines_total", all(memory, "lines")),
        ("program_written_bytes_total", 100_000.0),
        (
            "journal_commits_total",
            json["journal"]["commits"].as_f64().unwrap(),
        ),
        ("blocks_free", json["blocks_free"].as_f64().unwrap()),
        (
            "cache_dirty_blocks",
            json["cache"]["dirty"].as_f64().unwrap(),
        ),
        ("stopped", 0.0),
        ("info", 1.0),
    ] {
        assert_eq!(
            sums[format!("stetfs_{name}").as_str()],
            right,
            "{name}:\n{text}"
        );
    }
    let image = r#"/a \"quoted\\ name","#;
    assert!(text.contains(image), "{text}");
    // Without a mount point it is all volumes.
    let live = stetfs(&["stats", "--prometheus"]).ok();
    assert!(
        live.contains(&format!("stetfs_stopped{{dir=\"{}\"}} 0", m.dir)),
        "{live}"
    );
    m.down();
}

/// Delta Journaling: the memory beside the volume holds what was committed last, and the volume
/// cannot be used without it.
#[test]
fn a_volume_needs_the_memory_that_it_had_beside_it() {
    if !can_mount() {
        return;
    }
    let m = Mount::new();
    let nvm = m.lab.str("nvm");
    let options = |nvm: &str| format!("scheme=dj,durability=process,nvm={nvm}");
    let copy = m.lab.str("copy");
    fs::copy(&m.image, &copy).unwrap();
    let said = m.up(&["-o", &options(&nvm)]);
    assert!(said.contains("scheme dj, data=journal"), "{said}");
    assert_eq!(fs::metadata(&nvm).unwrap().len(), 16 << 20);
    for n in 0..30 {
        fs::write(m.file("file"), format!("{n} times")).unwrap();
        fs::File::open(m.file("file")).unwrap().sync_all().unwrap();
    }
    let stats = stetfs(&["stats", &m.dir]).ok();
    assert!(stats.contains("written to the memory beside it"), "{stats}");
    let stats = json(&stetfs(&["stats", "--json", &m.dir]).ok());
    let server = stats["server"]["pid"].as_u64();
    let server = server.unwrap_or_else(|| panic!("{stats}")).to_string();
    assert_eq!(tool("kill", &["-9", &server]).code, 0);
    stetfs(&["umount", "--lazy", &m.dir]);
    sleep(Duration::from_millis(200));
    let other = m.lab.str("other");
    let mount = |nvm: &str| stetfs(&["mount", "-o", &options(nvm), &m.image, &m.dir]);
    mount(&other).fails(1, &["other", "cannot open"]);
    fs::write(&other, vec![0; 16 << 20]).unwrap();
    mount(&other).fails(1, &["holds nothing of scheme dj"]);
    // A clean volume must not get memory that belongs to another one.
    let mounted = stetfs(&["mount", "-o", &options(&nvm), &copy, &m.dir]);
    mounted.fails(1, &["a copy of this one"]);
    // The volume knows where the memory was; if it has moved, -o nvm names it.
    let moved = m.lab.str("moved");
    fs::rename(&nvm, &moved).unwrap();
    let ran = stetfs(&["fsck", "-y", &m.image]);
    assert_ne!(ran.code, 0);
    assert!(
        ran.err.contains(&nvm) && ran.err.contains("is not there") && ran.err.contains("nvm=FILE"),
        "{ran:?}"
    );
    fs::write(&nvm, "something else").unwrap();
    stetfs(&["mount", &m.image, &m.dir]).fails(1, &[&nvm, "is not what the volume had there"]);
    symlink(&moved, m.lab.str("link")).unwrap();
    fs::rename(m.lab.str("link"), &nvm).unwrap();
    stetfs(&["mount", &m.image, &m.dir]).fails(1, &[&nvm, "neither a file nor"]);
    fs::rename(&moved, &nvm).unwrap();
    let said = m.up(&[]);
    assert!(said.contains("scheme dj"), "{said}");
    assert_eq!(fs::read_to_string(m.file("file")).unwrap(), "29 times");
    m.down();
    // fsck does the same after another crash.
    m.up(&["-o", &options(&nvm)]);
    fs::write(m.file("file"), "29 times").unwrap();
    fs::File::open(m.file("file")).unwrap().sync_all().unwrap();
    let stats = json(&stetfs(&["stats", "--json", &m.dir]).ok());
    let server = stats["server"]["pid"].as_u64().unwrap().to_string();
    assert_eq!(tool("kill", &["-9", &server]).code, 0);
    stetfs(&["umount", "--lazy", &m.dir]);
    sleep(Duration::from_millis(200));
    let said = stetfs(&["fsck", "-y", &m.image]).ok();
    assert!(said.contains("recovered the journal"), "{said}");
    assert_eq!(debugfs(&m.image, "cat /file"), "29 times");
    assert_clean(&m.image);
}

/// A cache that is the journal: after a crash it has everything confirmed. It can be left warm;
/// once drained, it is not needed any more.
#[test]
fn a_cache_is_recovered_kept_and_drained() {
    if !can_mount() {
        return;
    }
    let caches = stetfs_schemes::SCHEMES.iter().map(|scheme| scheme.about);
    for scheme in caches.filter(|about| about.caches).map(|about| about.name) {
        let m = Mount::new();
        let nvm = m.lab.str("nvm");
        fs::File::create(&nvm).unwrap().set_len(16 << 20).unwrap();
        let options = format!("scheme={scheme},durability=process,nvm={nvm}");
        let said = m.up(&["-o", &options]);
        assert!(said.contains(&format!("scheme {scheme}")), "{said}");
        let write = |text: &str| {
            fs::write(m.file("file"), text).unwrap();
            fs::File::open(m.file("file")).unwrap().sync_all().unwrap();
        };
        (0..30).for_each(|n| write(&format!("{n} times")));
        let stats = stetfs(&["stats", &m.dir]).ok();
        assert!(
            stats.contains("its cache:") && stats.contains("a commit:"),
            "{stats}"
        );
        let drained = stetfs(&["drain", &m.dir]).ok();
        assert!(drained.contains("it stays mounted"), "{drained}");
        let stats = json(&stetfs(&["stats", "--json", &m.dir]).ok());
        assert_eq!(stats["cache"]["dirty"], 0, "{stats}");
        write("the last");
        let server = stats["server"]["pid"].as_u64().unwrap().to_string();
        assert_eq!(tool("kill", &["-9", &server]).code, 0);
        stetfs(&["umount", "--lazy", &m.dir]);
        sleep(Duration::from_millis(200));
        assert_ne!(
            tool("e2fsck", &["-fn", &m.image]).code,
            0,
            "e2fsck takes it"
        );

        m.up(&["-o", &format!("{options},keep-cache")]);
        assert_eq!(fs::read_to_string(m.file("file")).unwrap(), "the last");
        write("kept");
        let left = stetfs(&["umount", &m.dir]);
        assert!(
            left.code == 0 && left.err.contains("stays in its cache"),
            "{left:?}"
        );
        assert_ne!(
            tool("e2fsck", &["-fn", &m.image]).code,
            0,
            "e2fsck takes it"
        );
        m.up(&["-o", &options]);
        assert_eq!(fs::read_to_string(m.file("file")).unwrap(), "kept");
        let stats = json(&stetfs(&["stats", "--json", &m.dir]).ok());
        assert!(
            stats["cache"]["hits"].as_u64().unwrap() > 0,
            "it was warm: {stats}"
        );
        write("drained");
        m.down();
        assert_clean(&m.image);

        m.up(&["-o", &format!("{options},keep-cache")]);
        write("drained later");
        stetfs(&["umount", &m.dir]).ok();
        let drained = stetfs(&["drain", &m.image]).ok();
        assert!(drained.contains("a plain ext4 image"), "{drained}");
        assert_eq!(debugfs(&m.image, "cat /file"), "drained later");
        assert_clean(&m.image);
    }
}

/// Once any file that was large enough became memory, whatever it held.
#[test]
fn memory_is_made_of_nothing_that_somebody_may_want() {
    if !can_mount() {
        return;
    }
    let m = Mount::new();
    let file = m.lab.str("file");
    let elsewhere = Lab::new();
    let other = elsewhere.volume(&[]);
    let beside = stetfs_schemes::SCHEMES.iter().map(|scheme| scheme.about);
    for scheme in beside
        .filter(|about| about.nvm.is_needed())
        .map(|about| about.name)
    {
        let options = format!("scheme={scheme},durability=process,nvm={file}");
        let mount = |options: &str| stetfs(&["mount", "-o", options, &m.image, &m.dir]);
        fs::copy(&other, &file).unwrap();
        let before = (sha256(&file), sha256(&m.image));
        mount(&options).fails(1, &[&file, "is not empty", "nvm-new"]);
        // A single byte at the end counts as content.
        let mut tail = vec![0; 16 << 20];
        *tail.last_mut().unwrap() = 1;
        assert_eq!((sha256(&file), sha256(&m.image)), before, "{scheme}");
        fs::write(&file, &tail).unwrap();
        mount(&options).fails(1, &["is not empty"]);
        assert_eq!(fs::read(&file).unwrap(), tail);
        m.up(&["-o", &format!("{options},nvm-new")]);
        m.down();
        m.up(&["-o", &options]);
        m.down();
        // Even a closed region does not go to another volume without a word.
        let mounted = stetfs(&["mount", "-o", &options, &other, &m.dir]);
        mounted.fails(1, &["was the region of another volume"]);
        // A refused mount removes the file that it made.
        fs::remove_file(&file).unwrap();
        let refused = |more: &str| assert_ne!(mount(&format!("{options},{more}")).code, 0);
        refused("keep-cache=perhaps");
        assert!(!Path::new(&file).exists(), "{scheme}");
        fs::write(&file, "").unwrap();
        refused("threshold=0");
        assert_eq!(fs::metadata(&file).unwrap().len(), 0, "{scheme}");
        fs::remove_file(&file).unwrap();
    }
}

#[test]
fn a_mounted_volume_is_left_alone_by_everything_else() {
    if !can_mount() {
        return;
    }
    let m = Mount::new();
    m.up(&["-q"]);
    stetfs(&["mkfs", "--force", &m.image]).fails(1, &["is mounted on", &m.dir, "stetfs umount"]);
    stetfs(&["fsck", "-y", &m.image]).fails(8, &["is mounted on"]);
    assert!(stetfs(&["fsck", "-n", &m.image]).err.contains("mounted on"));
    stetfs(&["ls", &m.image]).fails(1, &["is mounted on", &m.dir]);
    stetfs(&["cp", "/etc/passwd", &m.lab.place("/")]).fails(1, &["is mounted on"]);
    let other = m.lab.str("other");
    fs::create_dir(&other).unwrap();
    stetfs(&["mount", &m.image, &other]).fails(1, &["is mounted on"]);
    stetfs(&["mount", &m.image, &m.dir]).fails(1, &[&m.dir]);
    m.down();
}

#[test]
fn stats_tell_what_was_written() {
    if !can_mount() {
        return;
    }
    let m = Mount::new();
    m.up(&["-q", "-o", "data=journal"]);
    fs::write(m.file("file"), vec![9; 1 << 20]).unwrap();
    fs::File::open(m.file("file")).unwrap().sync_all().unwrap();
    let stats = json(&stetfs(&["stats", "--json", &m.file("file")]).ok());
    assert_eq!(stats["bytes_written"], 1 << 20);
    assert!(stats["journal"]["commits"].as_u64().unwrap() >= 1);
    let log: u64 = stats["device"]["traffic"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["cause"] == "log")
        .map(|row| row["write_bytes"].as_u64().unwrap())
        .sum();
    assert!(log > 1 << 20, "data=journal logs the data: {stats}");
    let table = stetfs(&["stats", &m.dir]).ok();
    assert!(
        table.contains("written to the device") && table.contains("programs wrote 1 MiB"),
        "{table}"
    );
    let line = format!("timeout 1 '{STETFS}' stats --watch 0.2 '{}'", m.dir);
    let watched = tool("sh", &["-c", &line]);
    assert!(
        watched.out.lines().count() >= 3 && watched.out.contains("commits/s"),
        "{watched:?}"
    );
    let line = format!("timeout 1 '{STETFS}' stats --watch '{}'", m.dir);
    let watched = tool("sh", &["-c", &line]);
    assert!(watched.out.contains("commits/s"), "{watched:?}");
    stetfs(&["stats", "/"]).fails(1, &["not on a mounted stetfs volume", "stetfs mounts"]);
    m.down();
}

/// Scheme stet says what it did with overwritten blocks, also without memory beside the volume.
#[test]
fn stats_tell_what_was_chosen_for_overwritten_blocks() {
    if !can_mount() {
        return;
    }
    let overwritten = |m: &Mount| {
        m.up(&["-q", "-o", "scheme=stet"]);
        for byte in [1, 2] {
            fs::write(m.file("file"), vec![byte; 1 << 20]).unwrap();
            let file = fs::OpenOptions::new().write(true).open(m.file("file"));
            let file = file.unwrap();
            file.sync_all().unwrap();
            for block in 0..8 {
                file.write_all_at(&[byte + 2; 4096], block * 65_536)
                    .unwrap();
                file.sync_all().unwrap();
            }
        }
        let stats = stetfs(&["stats", &m.dir]).ok();
        stetfs(&["umount", &m.dir]).ok();
        stetfs(&["fsck", "-n", &m.image]).ok();
        stats
    };
    let stats = overwritten(&Mount::new());
    assert!(stats.contains("overwritten blocks"), "{stats}");
    let stats = overwritten(&Mount::on_flash());
    let row = stats
        .lines()
        .find(|line| line.trim_start().starts_with("in place"));
    assert!(row.is_some(), "{stats}");
}

/// Counters that only some devices have are shown where there are any; the rest of the table does
/// not need them.
#[test]
fn stats_show_lines_fences_erases_and_time() {
    let lab = Lab::new();
    let shown = |name: &str, flushes: &str| {
        let text = format!(
            r#"{{"scheme":"null","device":{{"traffic":[{{"class":"data","cause":"home",
            "reads":0,"read_bytes":0,"writes":1,"write_bytes":4096,"lines":64,
            "busy_ns":1500000}}],"flushes":[{flushes}],"discards":0,"discard_bytes":0}}}}"#
        );
        fs::write(lab.path(name), text).unwrap();
        stetfs(&["stats", "--from", &lab.str(name)]).ok()
    };
    let sync =
        r#"{"cause":"home","flushes":0,"durable_writes":0,"fences":2,"erases":3,"busy_ns":500000}"#;
    let all = shown("all", sync);
    let line = "on the device: 64 cache lines written back, 2 fences, 3 blocks erased, requests \
        took 0.002 s";
    assert!(all.contains(line), "{all}");
    let fewer = shown("fewer", "");
    let line = "on the device: 64 cache lines written back, requests took 0.002 s";
    assert!(fewer.contains(line), "{fewer}");
}

#[test]
fn read_only_and_its_words() {
    if !can_mount() {
        return;
    }
    let m = Mount::new();
    let said = m.up(&["-o", "ro,noatime"]);
    assert!(said.contains("read-only"), "{said}");
    let e = fs::write(m.file("file"), "x").unwrap_err();
    assert_eq!(e.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    m.down();
    stetfs(&["mount", "-o", "frobnicate", &m.image, &m.dir])
        .fails(2, &["unknown mount option \"frobnicate\"", "--help"]);
    stetfs(&["mount", "-o", "scheme=magic", &m.image, &m.dir])
        .fails(2, &["magic", "stetfs schemes"]);
    stetfs(&["mount", "-o", "data=perhaps", &m.image, &m.dir]).fails(2, &["data=perhaps"]);
    stetfs(&["mount", &m.image, &m.lab.str("nowhere")]).fails(1, &["no such directory", "mkdir"]);
    stetfs(&["mount", &m.lab.str("none.img"), &m.dir]).fails(1, &["none.img", "No such file"]);
    stetfs(&["umount", &m.dir]).fails(1, &["no stetfs volume is mounted there"]);
}

/// Names of files are bytes.
#[test]
fn paths_need_not_be_utf8() {
    if !can_mount() {
        return;
    }
    let lab = Lab::new();
    let image = lab.path("").join(OsStr::from_bytes(b"disk\xff.img"));
    fs::rename(lab.volume(&[]), &image).unwrap();
    let dir = lab.path("").join(OsStr::from_bytes(b"mnt\xfe"));
    fs::create_dir(&dir).unwrap();
    let run = |args: &[&OsStr]| stetfs(args);
    run(&["mount".as_ref(), image.as_ref(), dir.as_ref()]).ok();
    let stats = run(&["stats".as_ref(), dir.as_ref()]);
    let info = run(&["info".as_ref(), image.as_ref()]);
    run(&["umount".as_ref(), dir.as_ref()]).ok();
    assert!(stats.ok().contains("scheme jbd2"));
    assert!(info.ok().contains("mounted on"));
    assert_clean(&image);
}

/// Runs the program under the name by which mount(8) or umount(8) calls it.
fn helper(lab: &Lab, name: &str, args: &[&str]) -> Ran {
    let link = lab.path(name);
    if !link.exists() {
        symlink(STETFS, &link).unwrap();
    }
    tool(&link, args)
}

#[test]
fn in_memory_it_is_told_what_survives() {
    if !can_mount() {
        return;
    }
    let m = Mount::new();
    for (durability, survives) in [
        ("", "survives power loss"),
        (
            ",durability=process",
            "survives the death of the process only",
        ),
    ] {
        let told = m.up(&["-o", &format!("scheme=shortcut,variant=adp-s{durability}")]);
        assert!(told.contains(survives), "{told}");
        fs::write(m.file("f"), durability).unwrap();
        let info = json(&stetfs(&["info", "--json", &m.image]).ok());
        assert_eq!(info["journal"]["scheme"], "shortcut", "{info}");
        let medium = info["mounted"]["medium"].as_str().unwrap();
        assert!(medium.contains(survives), "{info}");
        let stats = stetfs(&["stats", &m.dir]).ok();
        assert!(stats.contains(survives), "{stats}");
        m.down();
        let info = json(&stetfs(&["info", "--json", &m.image]).ok());
        assert_eq!(info["journal"]["scheme"], "jbd2", "{info}");
    }
}

#[test]
fn as_mounts_helper() {
    if !can_mount() {
        return;
    }
    let m = Mount::new();
    let options = "rw,noauto,nofail,x-systemd.automount,data=ordered";
    helper(
        &m.lab,
        "mount.fuse.stetfs",
        &[&m.image, &m.dir, "-o", options, "-t", "fuse.stetfs"],
    )
    .ok();
    assert!(m.is_mounted());
    fs::write(m.file("file"), "by the helper").unwrap();
    // mount(8) passes the options that the mount has; that these cannot change is worth no warning.
    let remount = |options: &str| {
        let args = [&m.image, &m.dir, "-o", options];
        helper(&m.lab, "mount.fuse.stetfs", &args).err
    };
    let same = if rustix::process::geteuid().is_root() {
        "rw,user_id=0,group_id=0,allow_other,default_permissions,remount,noexec"
    } else {
        "rw,remount,noexec"
    };
    assert_eq!(remount(same), "");
    assert!(remount("remount,data=journal").contains("cannot change data=journal"));
    helper(&m.lab, "umount.fuse.stetfs", &[&m.dir]).ok();
    assert!(!m.is_mounted());
    assert_eq!(debugfs(&m.image, "cat /file"), "by the helper");

    // As mount.fuse3 calls it for `mount -t fuse.stetfs` where no helper is installed.
    tool(STETFS, &[&m.image, &m.dir, "-o", "rw,dev,suid"]).ok();
    assert!(m.is_mounted());
    m.down();

    helper(&m.lab, "mount.fuse.stetfs", &[&m.image, &m.dir, "-f"]).ok();
    assert!(!m.is_mounted());
    helper(
        &m.lab,
        "mount.fuse.stetfs",
        &[&m.image, &m.dir, "-o", "frobnicate"],
    )
    .fails(1, &["frobnicate"]);
    helper(&m.lab, "mount.fuse.stetfs", &[&m.image]).fails(1, &["DIR"]);
    helper(&m.lab, "mount.fuse.stetfs", &["/etc/passwd", &m.dir]).fails(32, &["/etc/passwd"]);
    helper(
        &m.lab,
        "mount.fuse.stetfs",
        &[&m.image, &m.dir, "-s", "-o", "frobnicate,ro"],
    )
    .ok();
    m.down();
}

#[test]
fn a_killed_server_is_told_and_recovered() {
    if !can_mount() {
        return;
    }
    let m = Mount::new();
    m.up(&["-q"]);
    fs::write(m.file("kept"), "fsynced").unwrap();
    fs::File::open(m.file("kept")).unwrap().sync_all().unwrap();
    let pid = json(&stetfs(&["stats", "--json", &m.dir]).ok())["server"]["pid"].to_string();
    tool("kill", &["-KILL", &pid]).ok();
    for _ in 0..200 {
        if !m.is_mounted() {
            break;
        }
        sleep(Duration::from_millis(20));
    }
    assert!(
        !m.is_mounted(),
        "the mount point of a dead server is released"
    );
    let journal = stetfs(&["journal", &m.image]).ok();
    assert!(journal.contains("recovery replays it"), "{journal}");
    let said = m.up(&[]);
    assert!(said.contains("recovered the journal"), "{said}");
    assert_eq!(fs::read_to_string(m.file("kept")).unwrap(), "fsynced");
    m.down();
}

#[test]
fn a_busy_mount_is_told_and_can_be_detached() {
    if !can_mount() {
        return;
    }
    let m = Mount::new();
    m.up(&["-q"]);
    let open = fs::File::create(m.file("open")).unwrap();
    stetfs(&["umount", &m.dir]).fails(1, &["in use", "--lazy"]);
    stetfs(&["umount", "--lazy", &m.dir]).ok();
    assert!(!m.is_mounted());
    drop(open);
    for _ in 0..200 {
        if stetfs(&["ls", &m.image]).code == 0 {
            break;
        }
        sleep(Duration::from_millis(20));
    }
    assert_clean(&m.image);
}

#[test]
fn in_the_foreground_a_signal_unmounts() {
    if !can_mount() {
        return;
    }
    let m = Mount::new();
    let mut server = std::process::Command::new(STETFS)
        .args(["mount", "-f", "-q", &m.image, &m.dir])
        .spawn()
        .expect("the server");
    for _ in 0..500 {
        if m.is_mounted() && Path::new(&m.file("lost+found")).exists() {
            break;
        }
        sleep(Duration::from_millis(20));
    }
    fs::write(m.file("file"), "until the signal").unwrap();
    tool("kill", &["-TERM", &server.id().to_string()]).ok();
    assert!(server.wait().unwrap().success());
    assert!(!m.is_mounted());
    assert_clean(&m.image);
    assert_eq!(debugfs(&m.image, "cat /file"), "until the signal");
}

/// The server noticed that the image was deleted. The unmount says so, even if nobody could be told
/// before.
#[test]
fn umount_tells_that_the_image_was_deleted() {
    if !can_mount() {
        return;
    }
    for writes in [true, false] {
        let m = Mount::new();
        m.up(&[]);
        fs::write(m.file("file"), "content").unwrap();
        fs::remove_file(&m.image).unwrap();
        if writes {
            let file = fs::File::create(m.file("more")).unwrap();
            file.write_all_at(b"more", 0).unwrap();
            assert!(file.sync_all().is_err());
        }
        let ran = stetfs(&["umount", &m.dir]);
        assert!(!m.is_mounted());
        ran.fails(1, &["unmounted, but", &m.image, "was removed", "is lost"]);
    }
}

/// A stopped server cannot be asked who it is, and a process that asks it cannot be killed.
/// (Unmounting once waited for it, silently and for ever.)
#[test]
fn umount_names_a_server_that_does_not_answer() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    mount.up(&[]);
    let pid = json(&stetfs(&["stats", "--json", &mount.dir]).ok())["server"]["pid"].clone();
    let pid = pid.to_string();
    tool("kill", &["-STOP", &pid]).ok();
    let named = format!("process {pid}");
    let words = [
        "has not answered for 6 s",
        &named,
        "kill -CONT",
        "umount --lazy",
    ];
    assert!(stetfs(&["mounts"]).ok().contains(&mount.dir));
    stetfs(&["umount", "--timeout", "6", &mount.dir]).fails(1, &words);
    stetfs(&["umount", "--lazy", &mount.dir]).ok();
    tool("kill", &["-CONT", &pid]).ok();
    wait_until("the image is released", || {
        stetfs(&["fsck", "-n", &mount.image]).code == 0
    });
    assert_clean(&mount.image);
}

/// What a unit of systemd with `Type=notify` waits for, at both kinds of sockets.
#[test]
fn a_server_in_the_foreground_says_when_it_is_ready() {
    if !can_mount() {
        return;
    }
    let m = Mount::new();
    let path = m.lab.path("notify");
    let name = format!("stetfs-test-{}", std::process::id());
    let sockets = [
        (path.display().to_string(), SocketAddr::from_pathname(&path)),
        (format!("@{name}"), SocketAddr::from_abstract_name(&name)),
    ];
    for (variable, address) in sockets {
        let socket = UnixDatagram::bind_addr(&address.unwrap()).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let mut server = Command::new(STETFS)
            .args(["mount", "--foreground", "--quiet", &m.image, &m.dir])
            .env("NOTIFY_SOCKET", variable)
            .spawn()
            .unwrap();
        let mut message = [0; 100];
        let len = socket.recv(&mut message).unwrap();
        assert_eq!(&message[..len], b"READY=1");
        // The mount is there.
        fs::write(format!("{}/file", m.dir), "content").unwrap();
        stetfs(&["umount", &m.dir]).ok();
        assert!(server.wait().unwrap().success());
        assert_clean(&m.image);
    }
}

/// What `wear --json` says of a program or a file: bytes and syncs.
#[track_caller]
fn counts(report: &Value, list: &str, key: &str, name: &str) -> (u64, u64) {
    let rows = report[list].as_array().unwrap();
    let row = rows.iter().find(|row| row[key] == name);
    let row = row.unwrap_or_else(|| panic!("{name}: {report:#}"));
    (
        row["bytes"].as_u64().unwrap(),
        row["syncs"].as_u64().unwrap(),
    )
}

#[test]
fn wear_tells_who_writes_what() {
    if !can_mount() {
        return;
    }
    let m = Mount::new();
    let sh = |script: &str| tool("sh", &["-c", script, "sh", &m.dir]).ok();
    let path = |name: &str| format!("{}/{name}", m.dir);
    let file = |report: &Value, name: &str| counts(report, "files", "path", &path(name));
    let program = |report: &Value, name: &str| counts(report, "programs", "name", name);
    // Else whole pages count.
    m.up(&["-o", "nowriteback"]);
    fs::create_dir(path("dir")).unwrap();
    let many = "for n in 1 2 3 4 5 6 7; do
            head -c 10000 /dev/zero >$1/dir/new
            rm $1/dir/new
        done";
    sh(many);
    sh("dd if=/dev/zero of=$1/dir/a bs=4096 count=3 oflag=dsync status=none");
    sh("dd if=/dev/zero of=$1/dir/a bs=1000 count=1 conv=notrunc,fsync status=none");
    sh("cp $1/dir/a $1/copy; cp /dev/null $1/b");
    sh("for n in 1 2 3; do echo line | tee -a $1/b; sync $1/b; done");
    // Asked for anywhere in the mount.
    let report = json(&stetfs(&["wear", "--json", "--tbw", "1", &path("dir")]).ok());
    assert_eq!(file(&report, "dir/new"), (70_000, 0), "made seven times");
    assert_eq!(program(&report, "head"), (70_000, 0));
    assert_eq!(file(&report, "dir/a"), (3 * 4096 + 1000, 4));
    assert_eq!(program(&report, "dd"), (3 * 4096 + 1000, 4));
    assert_eq!(file(&report, "copy"), (3 * 4096, 0));
    assert_eq!(program(&report, "cp"), (3 * 4096, 0));
    assert_eq!(file(&report, "b"), (15, 3));
    assert_eq!(program(&report, "tee"), (15, 0));
    assert_eq!(program(&report, "sync"), (0, 3));
    // The rate is that of the meter, and so is what is left of the terabyte.
    let number = |key: &str| report[key].as_f64().unwrap();
    let a_year = number("written") / number("seconds") * 365.25 * 86_400.0 / 1e12;
    assert!(
        (number("tb_a_year") / a_year - 1.0).abs() < 1e-6,
        "{report:#}"
    );
    assert!((number("years") * a_year - 1.0).abs() < 1e-6, "{report:#}");

    // By inode, with the name that it has now; and of one that has none any more.
    m.down();
    m.up(&[]);
    sh("exec 3>>$1/b
        rm $1/dir/a; cp $1/b $1/dir/c; mv $1/b $1/dir/d
        echo 12345 >&3; sync $1/dir/d");
    let report = json(&stetfs(&["wear", "--json", &m.dir]).ok());
    let (bytes, syncs) = file(&report, "dir/d");
    assert!((6..=4096).contains(&bytes) && syncs == 1, "{report:#}");
    assert_eq!(file(&report, "dir/c"), (15, 0));
    assert_eq!(report["years"], Value::Null);

    // Only what comes from now on.
    let is_over = AtomicBool::new(false);
    let report = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                sh("dd if=/dev/zero of=$1/later bs=5000 count=1 status=none");
            }
        });
        let report = stetfs(&["wear", "--json", "--seconds", "1", &m.dir]);
        is_over.store(true, Ordering::Relaxed);
        json(&report.ok())
    });
    let later = file(&report, "later");
    assert!(later.0 > 0 && later == program(&report, "dd"), "{report:#}");
    assert_eq!(report["files"].as_array().unwrap().len(), 1, "{report:#}");
    let shown = stetfs(&["wear", &m.dir]).ok();
    assert!(
        shown.contains("TB a year") && shown.contains(&path("later")),
        "{shown}"
    );
    m.down();

    // There is nobody to ask.
    stetfs(&["wear", &m.dir]).fails(1, &["not on a mounted stetfs volume"]);
}

#[test]
fn the_health_of_volumes_is_checked() {
    if !can_mount() {
        return;
    }
    let m = Mount::new();
    let check = || stetfs(&["mounts", "--check", &m.dir]);
    check().fails(1, &[&m.dir, "no stetfs volume is mounted here"]);
    m.up(&[]);
    fs::create_dir(m.file("dir")).unwrap();
    assert!(check().ok().contains(&m.dir));
    let pid = json(&stetfs(&["stats", "--json", &m.dir]).ok())["server"]["pid"].to_string();
    tool("kill", &["-STOP", &pid]).ok();
    let silent = check();
    tool("kill", &["-CONT", &pid]).ok();
    let server = format!("its server (process {pid}) does not answer");
    silent.fails(1, &[&server]);
    m.down();

    tool(
        "debugfs",
        &["-w", "-R", "zap_block -f /dir -p 255 0", &m.image],
    )
    .ok();
    m.up(&[]);
    assert!(
        fs::read_dir(m.file("dir"))
            .unwrap()
            .any(|entry| entry.is_err())
    );
    check().fails(1, &["damage was found"]);
    fs::remove_file(&m.image).unwrap();
    let file = fs::File::create(m.file("more")).unwrap();
    file.write_all_at(b"more", 0).unwrap();
    assert!(file.sync_all().is_err());
    drop(file);
    check().fails(1, &["nothing is written any more", &m.image]);
    let all = json(&stetfs(&["mounts", "--json", "--check"]).out);
    let all = all["mounts"].as_array().unwrap();
    let row = all.iter().find(|row| row["dir"] == m.dir.as_str()).unwrap();
    assert!(row["problem"].as_str().unwrap().contains(&m.image), "{row}");
    let server = &json(&stetfs(&["stats", "--json", &m.dir]).ok())["server"];
    assert_eq!(
        (&row["version"], &row["pid"]),
        (&server["version"], &server["pid"])
    );
    stetfs(&["umount", &m.dir]).fails(1, &["was removed"]);
}

/// A container may be killed as a whole. If the server were the last of it to go, the kernel would
/// wait for ever for its answer to the unmount of a block device, and all of sync(2) with it.
#[test]
fn in_a_container_it_is_no_mount_of_a_block_device() {
    if !can_mount() || !rustix::process::geteuid().is_root() || !has("unshare") {
        return;
    }
    let m = Mount::new();
    let script = r#"
        "$1" mount -q "$2" "$3" && findmnt -n -o FSTYPE "$3" && "$1" umount "$3"
    "#;
    for namespaces in ["-m", "-mpf"] {
        let words = [namespaces, "--mount-proc", "sh", "-c", script, "sh"];
        let ran = tool(
            "unshare",
            &[&words[..], &[STETFS, &m.image, &m.dir]].concat(),
        );
        assert_eq!(ran.ok(), "fuse.stetfs\n", "{namespaces}");
        assert_clean(&m.image);
    }
}
