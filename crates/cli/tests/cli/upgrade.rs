//! `stetfs upgrade`: what programs see while a mount goes from one program to another. Skipped with
//! a message if there is no FUSE.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use serde_json::Value;

use crate::fakeroot::NOBODY;
use crate::mounted::{Mount, can_mount};
use crate::run::{Lab, Random, STETFS, assert_clean, has, json, stetfs, tool, unmount, wait_until};

/// What the server says of itself.
pub(crate) fn server(m: &Mount) -> Value {
    let stats = stetfs(&["stats", "--json", &m.dir]).ok();
    json(&stats)["server"].take()
}

#[track_caller]
pub(crate) fn upgrade(m: &Mount) {
    let said = stetfs(&["upgrade", &m.dir]).ok();
    assert!(
        said.contains("served by stetfs") && said.contains("pause of"),
        "{said}"
    );
}

/// A program that does everything to files in a directory of its own, and knows what must be there.
struct Busy {
    dir: PathBuf,
    random: Random,
    /// The files by their names.
    files: HashMap<u64, Vec<u8>>,
    log: (File, Vec<u8>),
}

impl Busy {
    fn new(dir: PathBuf, seed: u64) -> Self {
        fs::create_dir(&dir).unwrap();
        let log = File::options()
            .create(true)
            .append(true)
            .read(true)
            .open(dir.join("log"));
        Self {
            dir,
            random: Random(seed),
            files: HashMap::new(),
            log: (log.unwrap(), Vec::new()),
        }
    }

    fn path(&self, file: u64) -> PathBuf {
        self.dir.join(format!("file{file}"))
    }

    fn step(&mut self) {
        let (what, file) = (self.random.below(8), self.random.below(12));
        let path = self.path(file);
        match what {
            0..=2 => {
                let (len, byte) = (self.random.below(200_000), self.random.below(256));
                let content = vec![u8::try_from(byte).unwrap(); usize::try_from(len).unwrap()];
                let mut made = File::create(&path).unwrap();
                made.write_all(&content).unwrap();
                if what == 0 {
                    made.sync_all().unwrap();
                }
                self.files.insert(file, content);
            }
            3 => {
                let to = self.random.below(12);
                match fs::rename(&path, self.path(to)) {
                    Ok(()) => {
                        let content = self.files.remove(&file).unwrap();
                        self.files.insert(to, content);
                    }
                    Err(e) => assert!(!self.files.contains_key(&file), "{e}"),
                }
            }
            4 => {
                let there = self.files.remove(&file).is_some();
                assert_eq!(fs::remove_file(&path).is_ok(), there);
            }
            5 => {
                let line = vec![b'a' + u8::try_from(file).unwrap(); 500];
                self.log.0.write_all(&line).unwrap();
                self.log.1.extend(line);
            }
            6 => {
                let dir = self.dir.join("dir");
                fs::create_dir(&dir).unwrap();
                fs::remove_dir(&dir).unwrap();
            }
            _ => self.check(file),
        }
    }

    fn check(&self, file: u64) {
        let found = fs::read(self.path(file)).ok();
        assert!(
            found.as_ref() == self.files.get(&file),
            "{:?}",
            self.path(file)
        );
    }

    fn check_all(&self) {
        (0..12).for_each(|file| self.check(file));
        assert!(fs::read(self.dir.join("log")).unwrap() == self.log.1);
    }
}

/// Programs work all the time, with files open; each thing they did is there, as often as they did
/// it.
#[test]
fn programs_see_nothing_but_a_pause() {
    if !can_mount() {
        return;
    }
    let lab = Lab::new();
    let image = lab.str("disk.img");
    stetfs(&["mkfs", &image, "--size", "256M"]).ok();
    let m = Mount::of(lab, image);
    m.up(&[]);
    let pid = server(&m)["pid"].clone();
    let is_over = AtomicBool::new(false);
    let all: Vec<Busy> = std::thread::scope(|scope| {
        let start = |n: u64| {
            let dir = Path::new(&m.dir).join(format!("busy{n}"));
            let mut busy = Busy::new(dir, n);
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    busy.step();
                }
                busy
            })
        };
        let busy: Vec<_> = (1..=4).map(start).collect();
        for _ in 0..12 {
            upgrade(&m);
        }
        is_over.store(true, Ordering::Relaxed);
        busy.into_iter().map(|b| b.join().unwrap()).collect()
    });
    let server = server(&m);
    assert_eq!(
        (&server["pid"], &server["upgrade"]["count"]),
        (&pid, &12.into())
    );
    all.iter().for_each(Busy::check_all);
    drop(all.into_iter().map(|busy| busy.log).collect::<Vec<_>>());
    m.down();
}

#[test]
fn what_is_open_stays_open() {
    if !can_mount() {
        return;
    }
    let m = Mount::new();
    m.up(&[]);
    have_open(m, |m| upgrade(m));
}

/// Files that were removed while open, a removed working directory, a file without a name that gets
/// one later, a lock, a writer in the page cache; while the mount changes hands three times.
pub(crate) fn have_open(m: Mount, change_hands: impl Fn(&Mount)) {
    let open = |name: &str| {
        let mut how = File::options();
        how.read(true).write(true).create(true).truncate(false);
        how.open(m.file(name)).unwrap()
    };
    let (removed, locked, written) = (open("removed"), open("locked"), open("written"));
    removed.write_all_at(b"still here", 0).unwrap();
    fs::remove_file(m.file("removed")).unwrap();
    rustix::fs::flock(&locked, FlockOperation::NonBlockingLockExclusive).unwrap();
    let unnamed = rustix::fs::open(
        &m.dir,
        OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC,
        Mode::RUSR,
    )
    .unwrap();
    rustix::io::write(&unnamed, b"unnamed").unwrap();
    fs::create_dir(m.file("left")).unwrap();
    let mut inside = Command::new("sh")
        .args([
            "-c",
            "rmdir ../left && echo ready && read go && stat -c %h . && ls -a",
        ])
        .current_dir(m.file("left"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    let mut said = inside.stdout.take().unwrap();
    said.read_exact(&mut ready).unwrap();
    for round in 0..3 {
        written.write_all_at(b"page", round * 4).unwrap();
        change_hands(&m);
        let mut text = [0; 10];
        removed.read_exact_at(&mut text, 0).unwrap();
        assert_eq!(
            (&text, removed.metadata().unwrap().nlink()),
            (b"still here", 0)
        );
    }
    removed.write_all_at(b"and there", 6).unwrap();
    inside.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert!(inside.wait().unwrap().success(), "{rest}");
    assert_eq!(rest, "0\n");
    let path = format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(&unnamed)
    );
    let at = rustix::fs::CWD;
    rustix::fs::linkat(at, path, at, m.file("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_ne!(tool("flock", &["-n", &m.file("locked"), "true"]).code, 0);
    drop((removed, locked, written, unnamed));
    for (name, text) in [
        ("named", "unnamed"),
        ("written", "pagepagepage"),
        ("locked", ""),
    ] {
        assert_eq!(fs::read_to_string(m.file(name)).unwrap(), text);
    }
    m.down();
    // Nothing of what was removed is left: neither blocks nor orphans.
    let names = "locked\nlost+found\nnamed\nwritten\n";
    assert_eq!(stetfs(&["ls", &m.lab.place("/")]).ok(), names);
}

/// Every scheme, with its memory named by a relative path, and a part in NAND.
#[test]
fn each_scheme_is_handed_over() {
    if !can_mount() {
        return;
    }
    for options in [
        "scheme=jbd2,data=ordered",
        "scheme=stet",
        "scheme=stet,nvm=memory",
        "scheme=dj,nvm=memory",
        "scheme=tinca,nvm=memory",
        "scheme=spindle,nvm=memory",
        "scheme=ubj,nvm=memory",
        "scheme=shortcut",
    ] {
        let m = Mount::new();
        let script = "cd \"$1\" && \"$2\" mount -q -o \"$3\" disk.img mnt";
        let args = ["-c", script, "sh", &m.lab.str(""), STETFS, options];
        tool("sh", &args).ok();
        assert!(m.is_mounted(), "{options}");
        for round in ["one", "two"] {
            let file = File::create(m.file(round)).unwrap();
            fs::write(m.file("synced"), round).unwrap();
            upgrade(&m);
            file.write_all_at(round.as_bytes(), 0).unwrap();
            assert_eq!(fs::read_to_string(m.file("synced")).unwrap(), round);
        }
        let told = server(&m)["options"].as_str().unwrap().to_owned();
        let scheme = options.split(',').next().unwrap();
        assert!(told.contains(scheme), "{told}");
        m.down();
        for round in ["one", "two"] {
            let place = m.lab.place(&format!("/{round}"));
            assert_eq!(stetfs(&["cat", &place]).ok(), round, "{options}");
        }
    }
    let lab = Lab::new();
    let image = lab.str("flash.nand");
    stetfs(&["nand", "create", &image, "--size", "32M"]).ok();
    stetfs(&["mkfs", &image]).ok();
    let m = Mount::of(lab, image);
    m.up(&["-o", "scheme=jftl,durability=process"]);
    fs::write(m.file("file"), "on flash").unwrap();
    upgrade(&m);
    assert_eq!(fs::read_to_string(m.file("file")).unwrap(), "on flash");
    stetfs(&["umount", &m.dir]).ok();
    stetfs(&["nand", "check", &m.image]).ok();
}

/// What forbids it is told, and the mount goes on.
#[test]
fn what_forbids_it_is_told() {
    if !can_mount() {
        return;
    }
    let m = Mount::new();
    let up = |args: &[&str]| stetfs(&[&["upgrade"], args].concat());
    up(&[&m.dir]).fails(1, &["no stetfs volume is mounted there"]);
    m.up(&[]);
    fs::write(m.file("file"), "text").unwrap();
    let mut nobody = vec!["setpriv"];
    nobody.extend(NOBODY);
    nobody.extend([STETFS, "upgrade", &m.dir]);
    if rustix::process::geteuid().is_root() && has("setpriv") && has("unshare") {
        assert_ne!(tool(nobody[0], &nobody[1..]).code, 0);
        // Root as containers have it: the program would run outside of them.
        let bounds = [
            "setpriv",
            "--bounding-set",
            "-sys_admin",
            "--inh-caps",
            "-all",
        ];
        for container in [&["unshare", "--mount"][..], &bounds] {
            let words = [&container[1..], &[STETFS, "upgrade", &m.dir]].concat();
            tool(container[0], &words).fails(1, &["you may not choose", "container"]);
        }
    }
    let inside = format!("echo ready; exec '{STETFS}' upgrade '{}'", m.dir);
    let script = ["tx", "--layer", "memory", &m.dir, "--", "sh", "-c", &inside];
    let _ = stetfs(&script);
    assert_eq!(server(&m)["upgrade"]["count"], 0);
    m.down();
    m.up(&["-o", "scheme=null"]);
    up(&[&m.dir]).fails(1, &["cannot be handed over", "unmount it"]);
    assert_eq!(fs::read_to_string(m.file("file")).unwrap(), "text");
    m.down();
}

/// The next program may fail. Then the mount ends, and nothing is lost.
#[test]
fn a_program_that_fails_is_a_crash_that_loses_nothing() {
    if !can_mount() {
        return;
    }
    let m = Mount::new();
    for program in ["/bin/false", "/bin/true", "/etc/passwd", "/none"] {
        m.up(&[]);
        fs::write(m.file("file"), program).unwrap();
        let words = format!("upgrade {program}");
        let set = ["-n", "system.stetfs.control", "-v", &words, &m.dir];
        if !has("setfattr") {
            return;
        }
        assert_ne!(tool("setfattr", &set).code, 0);
        if program.starts_with("/bin") {
            wait_until("the mount point is released", || !m.is_mounted());
            wait_until("the image is free", || !crate::twice::is_locked(&m.image));
            stetfs(&["recover", &m.image]).ok();
        } else {
            // Nothing has happened yet.
            assert_eq!(fs::read_to_string(m.file("file")).unwrap(), program);
            upgrade(&m);
            m.down();
        }
        assert_clean(&m.image);
        assert_eq!(stetfs(&["cat", &m.lab.place("/file")]).ok(), program);
    }
}

/// After an upgrade the mount is like any other: it is unmounted, killed and recovered.
#[test]
fn afterwards_it_is_a_mount_as_before() {
    if !can_mount() {
        return;
    }
    let m = Mount::new();
    m.up(&[]);
    upgrade(&m);
    let file = File::create(m.file("file")).unwrap();
    file.write_all_at(b"synced", 0).unwrap();
    file.sync_all().unwrap();
    let pid = server(&m)["pid"].to_string();
    tool("sh", &["-c", "kill -KILL \"$1\"", "sh", &pid]).ok();
    wait_until("the dead mount is released", || !m.is_mounted());
    drop(file);
    wait_until("the image is free", || !crate::twice::is_locked(&m.image));
    m.up(&["-q"]);
    assert_eq!(fs::read_to_string(m.file("file")).unwrap(), "synced");
    upgrade(&m);
    if rustix::process::geteuid().is_root() {
        unmount(&m.dir);
        wait_until("the image is free", || !crate::twice::is_locked(&m.image));
        assert_clean(&m.image);
    } else {
        m.down();
    }
}

/// A script that holds a lock by a descriptor, as flock(1) shows it, mounts a volume.
#[test]
fn a_server_keeps_nothing_of_its_callers() {
    if !can_mount() {
        return;
    }
    let m = Mount::new();
    let script = "exec 9>\"$1\" && flock 9 && \"$2\" mount -q \"$3\" \"$4\"";
    let lock = m.lab.str("lock");
    tool("sh", &["-c", script, "sh", &lock, STETFS, &m.image, &m.dir]).ok();
    assert!(m.is_mounted());
    tool("flock", &["--nonblock", &lock, "true"]).ok();
    m.down();
}

/// A volume that the caller has open already, and the server finds by the descriptor's number.
#[test]
fn a_server_keeps_what_its_words_name() {
    if !can_mount() {
        return;
    }
    let m = Mount::new();
    for image in ["/proc/self/fd/9", "/dev/fd/9"] {
        let script = "exec 9<>\"$1\" && \"$2\" mount -q \"$3\" \"$4\"";
        let args = ["-c", script, "sh", &m.image, STETFS, image, &m.dir];
        tool("sh", &args).ok();
        assert!(m.is_mounted(), "{image}");
        m.down();
    }
}
