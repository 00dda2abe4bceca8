//! `mount -o front=kernel`: the kernel's own ext4 above each scheme. Whatever can hang has a time
//! limit.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::run::{
    Lab, STETFS, assert_clean, bounded, has, json, stetfs, tool, unmount, wait_until,
};

fn can_mount() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root || !Path::new("/dev/fuse").exists() || !Path::new("/dev/loop-control").exists() {
        eprintln!("SKIPPED: root, /dev/fuse and loop devices are needed");
        return false;
    }
    ["mke2fs", "e2fsck", "resize2fs"]
        .iter()
        .all(|program| has(program))
}

/// A volume that the kernel mounts on a device of ours.
struct Front {
    lab: Lab,
    image: String,
    mnt: String,
    options: String,
}

impl Front {
    fn new(kind: &[&str], options: &str) -> Self {
        let lab = Lab::new();
        let [image, mnt, nvm] = ["disk.img", "mnt", "nvm"].map(|name| lab.str(name));
        File::create(&image).unwrap().set_len(64 << 20).unwrap();
        tool("mke2fs", &[&["-q", "-F"], kind, &[&image]].concat()).ok();
        fs::create_dir(&mnt).unwrap();
        Self {
            lab,
            image,
            mnt,
            options: format!("front=kernel,{}", options.replace("NVM", &nvm)),
        }
    }

    #[track_caller]
    fn up(&self) {
        let words = ["mount", "-q", "-o", &self.options, &self.image, &self.mnt];
        bounded(STETFS, &words).ok();
    }

    fn stats(&self) -> serde_json::Value {
        json(&stetfs(&["stats", "--json", &self.mnt]).ok())
    }

    /// Writes files, each durable when the next one begins.
    fn write(&self, names: std::ops::Range<u32>) {
        for n in names {
            let mut file = File::create(self.path(n)).unwrap();
            file.write_all(&content(n)).unwrap();
            file.sync_all().unwrap();
            if n % 4 == 3 {
                fs::rename(self.path(n), self.path(n + 1000)).unwrap();
                fs::remove_file(self.path(n - 1)).unwrap();
                File::open(&self.mnt).unwrap().sync_all().unwrap();
            }
        }
    }

    #[track_caller]
    fn check(&self, names: std::ops::Range<u32>) {
        for n in names {
            let (is_renamed, is_removed) = (n % 4 == 3, n % 4 == 2);
            let path = self.path(if is_renamed { n + 1000 } else { n });
            match fs::read(&path) {
                Ok(found) => assert!(!is_removed && found == content(n), "{path}"),
                Err(e) => assert!(is_removed, "{path}: {e}"),
            }
        }
    }

    fn path(&self, n: u32) -> String {
        format!("{}/file{n}", self.mnt)
    }

    /// Kills the server, and takes away what the kernel has of it.
    fn kill(&self) {
        let stats = self.stats();
        let server = &stats["server"];
        let pid = Pid::from_raw(server["pid"].as_i64().unwrap() as i32).unwrap();
        let dir = server["dir"].as_str().unwrap();
        kill_process(pid, Signal::KILL).unwrap();
        unmount(&self.mnt);
        let is_gone = || !Path::new(dir).join("device").exists();
        wait_until("the server's directory to be empty", is_gone);
    }

    #[track_caller]
    fn down(&self) {
        bounded(STETFS, &["umount", &self.mnt]).ok();
        bounded("e2fsck", &["-fn", &self.image]).ok();
    }
}

impl Drop for Front {
    /// A test that fails leaves nothing behind.
    fn drop(&mut self) {
        if std::thread::panicking() {
            bounded("umount", &["-l", &self.mnt]);
        }
    }
}

fn content(n: u32) -> Vec<u8> {
    (0..3000 + 700 * n).map(|i| (i * n / 7 + n) as u8).collect()
}

#[test]
fn what_was_synced_survives_the_servers_death_under_every_scheme() {
    if !can_mount() {
        return;
    }
    let schemes = [
        "scheme=stet",
        "scheme=stet,log=jbd2",
        "scheme=stet,nvm=NVM",
        "scheme=dj,nvm=NVM",
        "scheme=ubj,nvm=NVM",
        "scheme=tinca,nvm=NVM",
        "scheme=spindle,nvm=NVM",
        "scheme=shortcut",
        "scheme=jbd2",
    ];
    let kinds: [&[&str]; 3] = [
        &["-t", "ext4", "-b", "4096"],
        &["-t", "ext4", "-b", "1024"],
        &["-t", "ext3", "-b", "2048"],
    ];
    let modes = ["data=journal", "data=ordered", "data=writeback"];
    for (n, scheme) in schemes.iter().enumerate() {
        // Each mode and each kind, with some scheme.
        let (mode, kind) = (modes[n % 3], kinds[n / 3]);
        let front = Front::new(kind, &format!("{scheme},{mode}"));
        eprintln!("{} on {kind:?}", front.options);
        front.up();
        front.write(0..12);
        front.kill();
        front.up();
        front.check(0..12);
        front.write(12..16);
        front.down();
        // The kernel alone reads what is left.
        tool("mount", &["-o", "loop,ro", &front.image, &front.mnt]).ok();
        front.check(0..16);
        unmount(&front.mnt);
    }
}

/// A server that is killed cannot remove its directory, so the next one does.
#[test]
fn what_a_killed_server_leaves_is_removed() {
    if !can_mount() {
        return;
    }
    let front = Front::new(&["-t", "ext4", "-b", "4096"], "scheme=stet");
    front.up();
    let stats = front.stats();
    let dir = stats["server"]["dir"].as_str().unwrap();
    // Who writes to the files, only the kernel knows.
    let wear = json(&stetfs(&["wear", "--json", &front.mnt]).ok());
    assert!(
        wear["programs"].is_null() && wear["scheme"] == "stet",
        "{wear}"
    );
    front.kill();
    front.up();
    assert!(!Path::new(dir).exists(), "{dir}");
    front.down();
}

/// What a unit of systemd waits for, and how it learns of the end.
#[test]
fn in_the_foreground_it_stays_until_the_mount_is_over() {
    if !can_mount() {
        return;
    }
    let front = Front::new(&["-t", "ext4", "-b", "4096"], "scheme=stet");
    let path = front.lab.path("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    let patience = Some(Duration::from_secs(60));
    socket.set_read_timeout(patience).unwrap();
    let up = || {
        let words = [
            "mount",
            "-fq",
            "-o",
            &front.options,
            &front.image,
            &front.mnt,
        ];
        let mut staying = Command::new(STETFS);
        let staying = staying.args(words).env("NOTIFY_SOCKET", &path).spawn();
        let mut message = [0; 100];
        let len = socket.recv(&mut message).unwrap();
        assert_eq!(&message[..len], b"READY=1");
        staying.unwrap()
    };
    let mut staying = up();
    front.write(0..4);
    unmount(&front.mnt);
    assert!(staying.wait().unwrap().success());
    assert_clean(&front.image);

    let mut staying = up();
    front.check(0..4);
    let open = File::open(front.path(0)).unwrap();
    tool("kill", &["-TERM", &staying.id().to_string()]).ok();
    wait_until("it is unmounted", || fs::metadata(front.path(0)).is_err());
    assert!(staying.try_wait().unwrap().is_none());
    drop(open);
    assert!(staying.wait().unwrap().success());
    assert_clean(&front.image);

    let mut staying = up();
    front.write(4..8);
    let server = front.stats()["server"]["pid"].to_string();
    tool("kill", &["-KILL", &server]).ok();
    assert_eq!(staying.wait().unwrap().code(), Some(69));
    assert!(fs::metadata(front.path(0)).is_err(), "nothing is mounted");
    let mut staying = up();
    front.check(0..8);
    stetfs(&["umount", &front.mnt]).ok();
    assert!(staying.wait().unwrap().success());
    assert_clean(&front.image);
}

#[test]
fn damage_that_the_kernel_finds_is_told() {
    if !can_mount() {
        return;
    }
    let front = Front::new(&["-t", "ext4", "-b", "4096"], "scheme=stet");
    let check = || stetfs(&["mounts", "--check", &front.mnt]);
    front.up();
    fs::create_dir(front.path(0)).unwrap();
    assert!(check().ok().contains(&front.mnt));
    front.down();
    let name = Path::new(&front.path(0)).file_name().unwrap().to_owned();
    let zap = format!("zap_block -f /{} -p 255 0", name.display());
    tool("debugfs", &["-w", "-R", &zap, &front.image]).ok();
    front.up();
    assert!(
        fs::read_dir(front.path(0))
            .unwrap()
            .any(|entry| entry.is_err())
    );
    check().fails(1, &["the kernel has found errors"]);
    unmount(&front.mnt);
}

/// The journal of a volume whose server was killed: what a scheme below wrote in JBD2's format is
/// shown as debugfs shows it, and a log of the scheme's own is said to be one.
#[test]
fn the_journal_of_what_was_committed_below_is_shown() {
    if !can_mount() || !has("debugfs") {
        return;
    }
    let front = Front::new(
        &["-t", "ext4", "-b", "4096"],
        "scheme=stet,log=jbd2,data=journal",
    );
    front.up();
    front.write(0..6);
    front.kill();
    let said = stetfs(&["journal", &front.image]).ok();
    let ours = said.matches(": recovery replays it").count();
    let dump = tool("debugfs", &["-R", "logdump", &front.image]).out;
    let theirs = dump.matches("(commit block)").count();
    assert_eq!(ours, theirs, "{said}\n{dump}");
    assert!(ours >= 6, "{said}");
    let front = Front::new(&["-t", "ext4", "-b", "4096"], "scheme=stet,data=journal");
    front.up();
    front.write(0..6);
    front.kill();
    let said = stetfs(&["journal", &front.image]).ok();
    assert!(said.contains("the log is in use by scheme stet"), "{said}");
}

/// The kernel's flushes reach the device unless each write is durable when it is answered.
#[test]
fn only_a_scheme_below_a_journal_of_everything_needs_no_flushes() {
    if !can_mount() {
        return;
    }
    let expected = [
        ("scheme=stet,data=journal", false),
        ("scheme=stet,data=journal,barrier", false),
        ("scheme=stet,data=ordered", true),
        ("scheme=jbd2,data=journal", true),
    ];
    for (options, is_flushed) in expected {
        let front = Front::new(&["-t", "ext4", "-b", "4096"], options);
        front.up();
        front.write(0..8);
        let stats = front.stats();
        let flushes = stats["server"]["flushes"].as_u64().unwrap();
        front.down();
        assert_eq!(flushes >= 8, is_flushed, "{options}: {stats}");
    }
}

#[test]
fn it_is_remounted_grown_checked_and_unmounted_as_any_ext4() {
    if !can_mount() {
        return;
    }
    let front = Front::new(&["-t", "ext4", "-b", "4096"], "scheme=stet,data=journal");
    // The device is larger than the volume.
    File::options()
        .write(true)
        .open(&front.image)
        .unwrap()
        .set_len(96 << 20)
        .unwrap();
    front.up();
    front.write(0..8);
    let stats = front.stats();
    assert_eq!(stats["scheme"], "stet");
    assert!(
        stats["journal"]["transactions"].as_u64().unwrap() >= 8,
        "{stats}"
    );
    let listed = json(&stetfs(&["mounts", "--json"]).ok());
    let listed = listed["mounts"].as_array().unwrap();
    let row = listed.iter().find(|row| row["dir"] == front.mnt.as_str());
    let row = row.unwrap_or_else(|| panic!("{listed:?}"));
    assert_eq!(
        (&row["scheme"], &row["data"]),
        (&"stet".into(), &"journal".into())
    );
    bounded("mount", &["-o", "remount,ro", &front.mnt]).ok();
    assert!(File::create(front.path(50)).is_err());
    bounded("mount", &["-o", "remount,rw", &front.mnt]).ok();
    // As mount(8) calls us for a line of /etc/fstab, and without such a line.
    let remount = |options: &str| {
        let words = ["mount", "-o", options, &front.image, &front.mnt];
        bounded(STETFS, &words)
    };
    remount(&format!("{},remount,ro", front.options)).ok();
    assert!(File::create(front.path(50)).is_err());
    remount("remount,rw").ok();
    let same = "it is mounted with scheme=stet";
    remount("remount,front=kernel,scheme=dj").fails(1, &["scheme=dj", same]);
    remount("remount,data=ordered,memory=1M").fails(1, &["memory=1M,data=ordered", same]);
    front.write(8..16);
    // umount(8) is enough.
    unmount(&front.mnt);
    wait_until("the image to be clean", || {
        tool("e2fsck", &["-fn", &front.image]).code == 0
    });
    front.up();
    front.check(0..16);
    front.down();
    // Grown and checked on the device itself. While it is mounted that needs CAP_SYS_RESOURCE.
    let dir = front.lab.str("dev");
    fs::create_dir(&dir).unwrap();
    bounded(STETFS, &["below", "-o", "scheme=stet", &front.image, &dir]).ok();
    let device = format!("{dir}/device");
    bounded("e2fsck", &["-f", "-p", &device]).ok();
    bounded("resize2fs", &[&device]).ok();
    bounded("e2fsck", &["-fn", &device]).ok();
    bounded(STETFS, &["umount", &dir]).ok();
    bounded("e2fsck", &["-fn", &front.image]).ok();
    front.up();
    front.check(0..16);
    front.down();
}
