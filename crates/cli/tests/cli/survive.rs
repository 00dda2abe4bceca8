//! `mount -o survive`: what programs see when their server is killed. Skipped with a message if
//! there is no FUSE, or the kernel cannot send requests again.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags, XattrFlags};

use crate::mounted::{Mount, can_mount};
use crate::run::{Lab, Random, assert_clean, stetfs, tool, wait_until};
use crate::upgrade::{have_open, server, upgrade};

/// Mounts so that the mount survives. False: this kernel cannot.
fn up(m: &Mount, options: &str) -> bool {
    let ran = stetfs(&["mount", "-q", "-o", options, &m.image, &m.dir]);
    if ran.err.contains("cannot send requests once more") {
        eprintln!("SKIPPED: {}", ran.err);
        return false;
    }
    ran.ok();
    true
}

fn pid(m: &Mount) -> String {
    server(m)["pid"].to_string()
}

/// Kills the server, and waits for the next one.
fn kill(m: &Mount) {
    let before = server(m);
    let pid = before["pid"].to_string();
    tool("sh", &["-c", "kill -KILL \"$1\"", "sh", &pid]).ok();
    let after = server(m);
    assert_ne!(after["pid"], before["pid"]);
    assert_eq!(
        after["deaths"].as_u64(),
        before["deaths"].as_u64().map(|d| d + 1)
    );
}

/// Does everything twice, on the mount and in a directory of its own elsewhere: the results must be
/// the same.
struct Twin {
    dirs: [PathBuf; 2],
    random: Random,
    open: HashMap<u64, [File; 2]>,
    steps: u64,
}

impl Twin {
    fn new(mount: &str, elsewhere: &Path, seed: u64) -> Self {
        let name = format!("twin{seed}");
        let dirs = [Path::new(mount).join(&name), elsewhere.join(&name)];
        dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
        Self {
            dirs,
            random: Random(seed),
            open: HashMap::new(),
            steps: 0,
        }
    }

    /// A name, in the directory or in one of those below, which may be there.
    fn name(&mut self) -> String {
        let (dir, name) = (self.random.below(4), self.random.below(6));
        match dir {
            0..2 => format!("{name}"),
            _ => format!("{dir}/{name}"),
        }
    }

    fn step(&mut self) {
        let (what, name, to) = (self.random.below(20), self.name(), self.name());
        let (slot, byte) = (self.random.below(4), self.random.below(256));
        let len = [1, 100, 5_000, 70_000][self.random.below(4) as usize];
        let at = [0, 1, 4_095, 10_000, 100_000][self.random.below(5) as usize];
        let bytes = vec![byte as u8; len];
        let seen = [0, 1].map(|side| {
            let path = |name: &str| self.dirs[side].join(name);
            let open = self.open.get(&slot).map(|both| &both[side]);
            act(what, [path(&name), path(&to)], open, (&bytes, at))
        });
        let [[one, other], shown] = [seen.each_ref(), seen.each_ref()];
        let same = match (one, other) {
            (Ok(one), Ok(other)) => one == other,
            (Err(one), Err(other)) => one.raw_os_error() == other.raw_os_error(),
            _ => false,
        };
        let shown = shown.map(|seen| format!("{seen:?}").chars().take(300).collect::<String>());
        let step = self.steps;
        assert!(same, "step {step}: {what} {name} {to} at {at}: {shown:#?}");
        self.steps += 1;
        match what {
            0..3 => {
                if let [Ok(Seen::Opened(one)), Ok(Seen::Opened(other))] = seen {
                    self.open.insert(slot, [one, other]);
                }
            }
            3 => drop(self.open.remove(&slot)),
            _ => {}
        }
    }
}

/// What came of it.
#[derive(Debug)]
enum Seen {
    Nothing,
    Opened(File),
    Numbers(u64, u64),
    Bytes(Vec<u8>),
    Names(Vec<String>),
}

impl PartialEq for Seen {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Nothing, Self::Nothing) | (Self::Opened(_), Self::Opened(_)) => true,
            (Self::Numbers(a, b), Self::Numbers(c, d)) => (a, b) == (c, d),
            (Self::Bytes(one), Self::Bytes(other)) => one == other,
            (Self::Names(one), Self::Names(other)) => one == other,
            _ => false,
        }
    }
}

fn act(
    what: u64,
    [path, to]: [PathBuf; 2],
    open: Option<&File>,
    (bytes, at): (&[u8], u64),
) -> io::Result<Seen> {
    let is_file = fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file());
    let nothing = |()| Seen::Nothing;
    let how = |how: &mut fs::OpenOptions| {
        let how = how
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed());
        how.open(&path).map(Seen::Opened)
    };
    let numbers = |meta: fs::Metadata| {
        let size = if meta.is_dir() { 0 } else { meta.size() };
        Seen::Numbers(u64::from(meta.mode()) << 32 | meta.nlink(), size)
    };
    match (what, open) {
        (0, _) => how(File::options().write(true).create(true)),
        (1, _) => how(File::options().write(true).create_new(true)),
        (2, _) if is_file => how(File::options().write(true).truncate(true)),
        (4, _) => fs::create_dir(&path).map(nothing),
        (5, _) => fs::remove_file(&path).map(nothing),
        (6, _) => fs::remove_dir(&path).map(nothing),
        // A directory stays where its names are looked for.
        (7 | 8, _) if !path.is_dir() && !to.is_dir() => fs::rename(&path, &to).map(nothing),
        (9, _) => fs::hard_link(&path, &to).map(nothing),
        (10, _) => symlink("t".repeat(bytes.len().min(200)), &path).map(nothing),
        (11, _) => {
            let made = rustix::fs::mknodat(
                rustix::fs::CWD,
                &path,
                rustix::fs::FileType::Fifo,
                Mode::RUSR,
                0,
            );
            Ok(made.map(nothing)?)
        }
        (12..15, Some(file)) => file.write_all_at(bytes, at).map(nothing),
        (15, Some(file)) => file.set_len(at).map(nothing),
        (16, Some(file)) => {
            let mut content = vec![0; 200_000];
            let len = file.read_at(&mut content, 0)?;
            content.truncate(len);
            Ok(Seen::Bytes(content))
        }
        (17, Some(file)) => {
            let len = file.metadata()?.len();
            file.write_all_at(bytes, len)?;
            file.metadata().map(numbers)
        }
        (18, _) if is_file => {
            let mode = 0o600 | u32::from(bytes[0]);
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
            let flags = [XattrFlags::CREATE, XattrFlags::REPLACE][usize::from(bytes[0] % 2)];
            let value = &bytes[..bytes.len().min(90)];
            match bytes[0] % 3 {
                0 => rustix::fs::setxattr(&path, "user.x", value, flags)?,
                1 => rustix::fs::removexattr(&path, "user.x")?,
                _ => {}
            }
            Ok(Seen::Nothing)
        }
        (19, _) => {
            let dir = path.parent().unwrap();
            let names = fs::read_dir(dir)?.map(|entry| {
                let entry = entry.unwrap();
                let meta = fs::symlink_metadata(entry.path()).unwrap();
                format!("{:?} {:?}", entry.file_name(), numbers(meta))
            });
            let mut names: Vec<_> = names.collect();
            names.sort();
            Ok(Seen::Names(names))
        }
        _ => Ok(Seen::Nothing),
    }
}

/// Everything below a directory: names, attributes and contents.
fn tree(dir: &Path) -> Vec<(PathBuf, Seen)> {
    let mut all = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(dir_left) = left.pop() {
        for entry in fs::read_dir(&dir_left).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let name = path.strip_prefix(dir).unwrap().to_owned();
            if meta.is_dir() {
                left.push(path);
            } else if meta.is_file() {
                let mut content = fs::read(&path).unwrap();
                let mut value = [0; 100];
                let len = rustix::fs::getxattr(&path, "user.x", &mut value).unwrap_or(0);
                content.extend_from_slice(&value[..len]);
                all.push((name.clone(), Seen::Bytes(content)));
            }
            let mode = u64::from(meta.mode());
            all.push((name, Seen::Numbers(mode, meta.nlink())));
        }
    }
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}

/// Programs work all the time while their servers are killed; afterwards everything is there, and
/// on the volume.
fn nobody_notices(options: &str, deaths: usize) {
    let lab = Lab::new();
    let (image, elsewhere) = (lab.str("disk.img"), lab.str("elsewhere"));
    fs::create_dir(&elsewhere).unwrap();
    stetfs(&["mkfs", &image, "--size", "256M"]).ok();
    let m = Mount::of(lab, image);
    if !up(&m, &format!("survive=1000,{options}")) {
        return;
    }
    let is_over = AtomicBool::new(false);
    let steps: u64 = std::thread::scope(|scope| {
        let start = |seed: u64| {
            let mut twin = Twin::new(&m.dir, Path::new(&elsewhere), seed);
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    twin.step();
                }
                twin.steps
            })
        };
        let twins: Vec<_> = (1..=3).map(start).collect();
        for _ in 0..deaths {
            kill(&m);
        }
        is_over.store(true, Ordering::Relaxed);
        twins.into_iter().map(|twin| twin.join().unwrap()).sum()
    });
    assert!(steps > 100, "{steps}");
    m.down();
    m.up(&[]);
    for seed in 1..=3 {
        let of = |dir: &str| tree(&Path::new(dir).join(format!("twin{seed}")));
        let (there, here) = (of(&elsewhere), of(&m.dir));
        for (there, here) in there.iter().zip(&here) {
            assert!(there == here, "{options}: {:?}, {:?}", there.0, here.0);
        }
        assert_eq!(there.len(), here.len());
    }
    m.down();
}

#[test]
fn programs_do_not_notice_that_their_server_is_killed() {
    if !can_mount() {
        return;
    }
    nobody_notices("data=journal", 25);
    nobody_notices("data=ordered,nowriteback", 15);
    nobody_notices("scheme=stet", 15);
}

#[test]
fn what_is_open_stays_open_when_servers_die() {
    if !can_mount() {
        return;
    }
    let m = Mount::new();
    if up(&m, "survive=9") {
        have_open(m, |m| {
            kill(m);
            upgrade(m);
            kill(m);
        });
    }
}

/// A volume with memory of its own, and one on a simulated part.
#[test]
fn other_media_survive_too() {
    if !can_mount() {
        return;
    }
    for options in ["survive,scheme=stet,nvm=", "survive,scheme=tinca,nvm="] {
        let m = Mount::new();
        if !up(&m, &format!("{options}{}", m.lab.str("memory"))) {
            return;
        }
        for round in ["one", "two"] {
            fs::write(m.file(round), round).unwrap();
            kill(&m);
            assert_eq!(fs::read_to_string(m.file(round)).unwrap(), round);
        }
        m.down();
    }
}

/// A server that dies again and again is not started again for ever.
#[test]
fn too_many_deaths_end_the_mount() {
    if !can_mount() {
        return;
    }
    let m = Mount::new();
    if !up(&m, "survive=2") {
        return;
    }
    fs::write(m.file("file"), "text").unwrap();
    kill(&m);
    kill(&m);
    File::open(m.file("file")).unwrap().sync_all().unwrap();
    tool("sh", &["-c", "kill -KILL \"$1\"", "sh", &pid(&m)]).ok();
    wait_until("the mount point is released", || !m.is_mounted());
    wait_until("the image is free", || !crate::twice::is_locked(&m.image));
    stetfs(&["recover", &m.image]).ok();
    assert_clean(&m.image);
    assert_eq!(stetfs(&["cat", &m.lab.place("/file")]).ok(), "text");
}

/// What cannot survive is refused, or ends with its server.
#[test]
fn what_does_not_survive_says_so() {
    if !can_mount() {
        return;
    }
    let m = Mount::new();
    let refused = |options: &str| {
        let ran = stetfs(&["mount", "-o", options, &m.image, &m.dir]);
        ran.fails(1, &["survive: "]);
        wait_until("the image is free", || !crate::twice::is_locked(&m.image));
        assert!(!m.is_mounted());
    };
    refused("survive,scheme=null");
    refused("survive,transport=uring");
    if !up(&m, "survive") {
        return;
    }
    fs::write(m.file("file"), "before").unwrap();
    File::open(m.file("file")).unwrap().sync_all().unwrap();
    let script = "echo inside > \"$2\" && kill -KILL \"$1\" && sleep 0.1; cat \"$2\"";
    let of = ["tx", "--layer", "memory", &m.dir, "--", "sh", "-c", script];
    let (pid, file) = (pid(&m), m.file("file"));
    let ran = stetfs(&[&of[..], &["sh", &pid, &file]].concat());
    assert_ne!(ran.code, 0);
    wait_until("the mount point is released", || !m.is_mounted());
    wait_until("the image is free", || !crate::twice::is_locked(&m.image));
    assert_eq!(stetfs(&["cat", &m.lab.place("/file")]).ok(), "before");
}
