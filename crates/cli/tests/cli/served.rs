//! Devices on sockets and as loop devices: `--as nbd:...`, `--as loop`. Programs that know nothing
//! of us use them.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};

use crate::run::{
    Lab, STETFS, assert_clean, bounded, has, json, stetfs, tool, unmount, wait_until,
};

/// Where the superblock's label is: in a block that has changed only if its transaction is there.
const LABEL: u64 = 1024 + 0x78;

/// A server in the foreground.
struct Server {
    child: Child,
    /// How clients call it.
    uri: String,
}

impl Server {
    /// Starts `stetfs ARGS --foreground`, and waits until it says where it serves.
    fn start<A: AsRef<OsStr>>(args: &[A]) -> Self {
        let mut child = Command::new(STETFS)
            .args(args)
            .arg("--foreground")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
        let uri = said.find_map(|line| {
            let line = line.unwrap();
            eprintln!("{line}");
            let (uri, _) = line
                .strip_prefix("stetfs: serving ")?
                .split_once("; end it")?;
            Some(uri.to_owned())
        });
        std::thread::spawn(move || said.for_each(|line| eprintln!("{}", line.unwrap_or_default())));
        Self {
            child,
            uri: uri.expect("it serves"),
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Ends it as a user does.
    fn stop(mut self) {
        self.signal(Signal::TERM);
        assert!(self.child.wait().unwrap().success());
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client that does one thing after the other and says when it is done.
struct QemuIo {
    child: Child,
    to: ChildStdin,
    from: ChildStdout,
}

impl QemuIo {
    fn new(uri: &str) -> Self {
        let mut child = Command::new("qemu-io")
            .args(["-f", "raw", uri])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let to = child.stdin.take().unwrap();
        let from = child.stdout.take().unwrap();
        let mut qemu = Self { child, to, from };
        qemu.answer();
        qemu
    }

    /// Has commands carried out, one after the other.
    fn ask(&mut self, commands: &[&str]) {
        for command in commands {
            writeln!(self.to, "{command}").unwrap();
            let said = self.answer();
            assert!(!said.contains("fail") && !said.contains("rror"), "{said}");
        }
    }

    /// What it says until it asks for the next command.
    fn answer(&mut self) -> String {
        let mut said = Vec::new();
        while !said.ends_with(b"qemu-io> ") {
            let mut byte = [0];
            self.from.read_exact(&mut byte).unwrap();
            said.extend(byte);
        }
        String::from_utf8_lossy(&said).into_owned()
    }
}

impl Drop for QemuIo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// qemu-io once, with commands that all succeed.
#[track_caller]
fn qemu_io(target: &str, commands: &[String]) {
    let mut args = vec!["-f", "raw", target];
    args.extend(commands.iter().flat_map(|command| ["-c", command]));
    let said = bounded("qemu-io", &args).ok();
    assert!(!said.contains("failed") && !said.contains("rror"), "{said}");
}

fn can_talk() -> bool {
    ["qemu-io", "nbdinfo", "nbdcopy"].iter().all(|p| has(p))
}

/// A volume whose superblock has no checksum: its label can be changed by a write.
fn volume(lab: &Lab) -> String {
    lab.volume(&["--", "-O", "^metadata_csum", "-L", "old"])
}

/// The same random requests go to a part and to a plain file.
#[test]
fn random_writes_are_those_of_a_plain_file() {
    if !can_talk() {
        return;
    }
    let lab = Lab::new();
    let [nand, plain, socket, back] = ["nand", "plain", "socket", "back"].map(|n| lab.str(n));
    stetfs(&["nand", "create", &nand, "--size", "24M"]).ok();
    let address = format!("nbd:{socket}");
    let server = Server::start(&["nand", "export", &nand, "--as", &address]);
    let size = bounded("nbdinfo", &["--size", &server.uri]).ok();
    let size: u64 = size.trim().parse().unwrap();
    File::create(&plain).unwrap().set_len(size).unwrap();
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    let commands: Vec<String> = (0..300)
        .map(|n| {
            let at = random(size - (1 << 20));
            let most = 2 << random(20);
            let len = 1 + random(most);
            match random(8) {
                0 => format!("write -z {at} {len}"),
                1 => format!("write -z -u {at} {len}"),
                2 => format!("write -f -P {} {at} {len}", 1 + n % 255),
                3 => "flush".to_owned(),
                _ => format!("write -P {} {at} {len}", 1 + n % 255),
            }
        })
        .collect();
    qemu_io(&server.uri, &commands);
    qemu_io(&plain, &commands);
    server.stop();
    assert!(!Path::new(&socket).exists());
    // What is on the part, by a server that has seen none of it.
    let server = Server::start(&["nand", "export", &nand, "--as", &address]);
    bounded("nbdcopy", &[&server.uri, &back]).ok();
    assert!(fs::read(&back).unwrap() == fs::read(&plain).unwrap());
    server.stop();
    let check = stetfs(&["nand", "check", &nand]).ok();
    assert!(check.contains("the map is sound"), "{check}");
}

/// How a device is used, whatever stands between it and its user.
enum User {
    Nbd(Server, QemuIo),
    File(Child, PathBuf),
}

impl User {
    fn nbd(image: &str, lab: &Lab) -> Self {
        let address = format!("nbd:{}", lab.str("socket"));
        let server = Server::start(&["below", image, "--as", &address]);
        let qemu = QemuIo::new(&server.uri);
        Self::Nbd(server, qemu)
    }

    fn file(image: &str, lab: &Lab) -> Self {
        let dir = lab.path("dev");
        // A server that was killed leaves the mount to its companion.
        wait_until("the directory is there", || {
            fs::create_dir_all(&dir).is_ok()
                && fs::read_dir(&dir).is_ok_and(|mut d| d.next().is_none())
        });
        let child = Command::new(STETFS)
            .args(["below", image, "--foreground", "--as"])
            .arg(format!("file:{}", dir.display()))
            .spawn()
            .unwrap();
        let file = dir.join("device");
        wait_until("the file is there", || file.exists());
        Self::File(child, file)
    }

    /// Writes a label, durable when this returns: by a flush, or by forced unit access.
    fn write_durably(&mut self, label: u8, fua: bool) {
        match self {
            Self::Nbd(_, qemu) if fua => {
                qemu.ask(&[&format!("write -f -P {label} {LABEL} 3")]);
            }
            Self::Nbd(_, qemu) => {
                qemu.ask(&[&format!("write -P {label} {LABEL} 3"), "flush"]);
            }
            Self::File(_, path) => {
                let flags = if fua { OFlags::DSYNC } else { OFlags::empty() };
                let mut options = File::options();
                let flags = flags.bits().cast_signed();
                let file = options.write(true).custom_flags(flags).open(path).unwrap();
                file.write_all_at(&[label; 3], LABEL).unwrap();
                if !fua {
                    file.sync_all().unwrap();
                }
            }
        }
    }

    fn kill(self) {
        match self {
            Self::Nbd(server, _qemu) => server.kill(),
            Self::File(mut child, _) => {
                child.kill().unwrap();
                child.wait().unwrap();
            }
        }
    }
}

/// A flush that was answered is durable, and so is a write with forced unit access: the server is
/// killed right behind the answer. What was written is in a transaction of the scheme's then, and
/// comes into the image by its recovery.
#[test]
fn what_was_answered_survives_the_server() {
    type Start = fn(&str, &Lab) -> User;
    let is_root = rustix::process::geteuid().is_root();
    let with_fuse = (is_root && Path::new("/dev/fuse").exists()).then_some(User::file as Start);
    let with_nbd = can_talk().then_some(User::nbd as Start);
    for start in with_fuse.into_iter().chain(with_nbd) {
        let lab = Lab::new();
        let image = volume(&lab);
        for (round, label) in (b'a'..b'g').enumerate() {
            let mut user = start(&image, &lab);
            user.write_durably(label, round % 2 == 1);
            user.kill();
            let mut raw = [0; 3];
            let file = File::open(&image).unwrap();
            file.read_exact_at(&mut raw, LABEL).unwrap();
            assert_ne!(raw, [label; 3], "no transaction, the kill proves nothing");
            // Recovery is asked by the command, without a server.
            wait_until("the image is free", || {
                stetfs(&["fsck", "-y", &image]).code <= 1
            });
            let label = String::from_utf8(vec![label; 3]).unwrap();
            let found = bounded("dumpe2fs", &["-h", &image]).ok();
            let found = found.lines().find(|line| line.contains("volume name"));
            assert!(
                found.is_some_and(|line| line.ends_with(&label)),
                "{label}: {found:?}"
            );
        }
        assert_clean(&image);
    }
}

#[test]
fn addresses_are_of_this_machine_unless_asked() {
    if !can_talk() {
        return;
    }
    let lab = Lab::new();
    let image = lab.volume(&[]);
    let stats = lab.str("stats.json");
    let args = [
        "below",
        &image,
        "--as",
        "nbd:127.0.0.1:0",
        "--stats",
        &stats,
    ];
    let server = Server::start(&args);
    assert!(server.uri.starts_with("nbd://127.0.0.1:"), "{}", server.uri);
    qemu_io(
        &server.uri,
        &["write -P 7 8M 70000", "read -P 7 8M 70000", "flush"].map(str::to_owned),
    );
    server.signal(Signal::USR1);
    wait_until("the statistics are there", || Path::new(&stats).exists());
    let seen = json(&fs::read_to_string(&stats).unwrap());
    assert_eq!(seen["scheme"], "stet");
    assert_eq!(seen["server"]["image"], image.as_str());
    assert!(seen["server"]["requests"].as_u64().unwrap() >= 3, "{seen}");
    server.stop();
    let seen = json(&fs::read_to_string(&stats).unwrap());
    assert_eq!(seen["server"]["connections"], 0);
    assert_clean(&image);
    let refused = ["below", &image, "--foreground", "--as", "nbd:0.0.0.0:0"];
    stetfs(&refused).fails(2, &["other machines", "--listen-anywhere"]);
    let server = Server::start(&[
        "below",
        &image,
        "--listen-anywhere",
        "--as",
        "nbd:0.0.0.0:0",
    ]);
    server.stop();
}

#[test]
fn a_server_in_the_background_is_ended_by_a_signal() {
    if !can_talk() {
        return;
    }
    let lab = Lab::new();
    let image = lab.volume(&[]);
    let socket = lab.str("socket");
    let address = format!("nbd:{socket}");
    let started = stetfs(&["below", &image, "--as", &address]);
    let said = started.err.clone();
    started.ok();
    let (_, pid) = said.split_once("end it with: kill ").unwrap();
    let pid = pid.lines().next().unwrap().parse().unwrap();
    let uri = format!("nbd+unix:///?socket={socket}");
    assert!(
        bounded("nbdinfo", &["--list", &uri])
            .ok()
            .contains("scheme stet")
    );
    stetfs(&["below", &image, "--as", &address]).fails(1, &["another server listens there"]);
    let other = format!("nbd:{}", lab.str("other"));
    kill_process(Pid::from_raw(pid).unwrap(), Signal::INT).unwrap();
    // The next server waits for the end of this one.
    let server = Server::start(&["below", &image, "--as", &other]);
    assert!(!Path::new(&socket).exists());
    server.stop();
    assert_clean(&image);
}

/// The disk of a virtual machine: the socket is there as long as the server. `make test-guest` has
/// machines; `export/src/vhost_user/tests.rs` a driver.
#[test]
fn a_disk_for_a_machine_is_one_servers() {
    let lab = Lab::new();
    let image = lab.volume(&[]);
    let (socket, stats) = (lab.str("socket"), lab.str("stats.json"));
    let address = format!("vhost-user:{socket}");
    let args = ["below", &image, "--as", &address, "--stats", &stats];
    let server = Server::start(&args);
    assert_eq!(server.uri, address);
    stetfs(&["below", &image, "--as", &address]).fails(1, &["another server listens there"]);
    server.stop();
    assert!(!Path::new(&socket).exists());
    let seen = json(&fs::read_to_string(&stats).unwrap());
    assert_eq!(seen["scheme"], "stet");
    assert_eq!(seen["server"]["requests"], 0);
    assert_clean(&image);
    let server = Server::start(&args);
    server.kill();
    // The next server takes over what a killed one has left.
    assert!(Path::new(&socket).exists());
    Server::start(&args).stop();
    assert_clean(&image);
}

/// The kernel's ext4 on the loop device; the server ends with it and leaves a plain image.
#[test]
fn a_loop_device_ends_its_server() {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root
        || !["/dev/fuse", "/dev/loop-control"]
            .iter()
            .all(|p| Path::new(p).exists())
    {
        eprintln!("SKIPPED: root, /dev/fuse and loop devices are needed");
        return;
    }
    let lab = Lab::new();
    let image = lab.volume(&[]);
    let mnt = lab.str("mnt");
    fs::create_dir(&mnt).unwrap();
    let device = bounded(STETFS, &["below", &image, "--as", "loop"]).ok();
    let device = device.trim();
    assert!(device.starts_with("/dev/loop"), "{device}");
    bounded("mount", &["-o", "data=journal", device, &mnt]).ok();
    fs::write(format!("{mnt}/file"), [7; 10_000]).unwrap();
    bounded("sync", &[&format!("{mnt}/file")]).ok();
    unmount(&mnt);
    // The device is there without a mount, and the server with it.
    bounded("mount", &["-o", "data=journal", device, &mnt]).ok();
    assert_eq!(fs::read(format!("{mnt}/file")).unwrap(), [7; 10_000]);
    unmount(&mnt);
    bounded("losetup", &["-d", device]).ok();
    wait_until("the image is plain", || {
        tool("e2fsck", &["-fn", &image]).code == 0
    });
    let content = stetfs(&["cat", &lab.place("/file")]).ok();
    assert!(content.as_bytes() == [7; 10_000]);
}

#[test]
fn what_cannot_be_offered_says_why() {
    let lab = Lab::new();
    let image = lab.volume(&[]);
    let below = |words: &[&str]| {
        let mut all = vec!["below", image.as_str()];
        all.extend(words);
        stetfs(&all)
    };
    below(&[]).fails(2, &["--as"]);
    below(&["--as", "nonsense"]).fails(2, &["file:DIR", "loop", "nbd:SOCKET"]);
    below(&["--as", "nbd:"]).fails(2, &["nbd:SOCKET"]);
    below(&["--as", "vhost-user:"]).fails(2, &["vhost-user:SOCKET"]);
    below(&["--as", "loop", "dir"]).fails(2, &["cannot be used with"]);
    below(&["--as", "loop", "--foreground"]).fails(2, &["--foreground"]);
    below(&["--stats", "x", "dir"]).fails(2, &["--stats"]);
    below(&["--as", "file:none"]).fails(1, &["no such directory"]);
    below(&["--as", &format!("nbd:{image}")]).fails(1, &["a file exists there"]);
    below(&["--as", &format!("vhost-user:{image}")]).fails(1, &["a file exists there"]);
    below(&["--as", &format!("nbd:{}/no/socket", lab.str("no"))]).fails(1, &["no/socket"]);
    assert_clean(&image);
}
